"""The special token ids. Standard library only: ``seams.families`` imports this module when SGLang starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class VisionTokens:
    """The special token ids of a processor.

    ``foreign``: placeholders of the modalities that the request does not carry, by name (``{"video":
    151656}``). Its ids may hold none of them. ``video`` and ``audio``: the placeholders of videos and of
    audio, if the request carries such media. ``audio_start`` and ``audio_end`` stand around placeholders of
    audio; ``None``: the model takes no audio.
    """

    image: int
    vision_start: int
    vision_end: int
    foreign: Mapping[str, int] = field(default_factory=dict)
    video: int | None = None
    audio: int | None = None
    audio_start: int | None = None
    audio_end: int | None = None

    @property
    def placeholders(self) -> dict[str, int]:
        """The placeholders of a request without media, by the modality that they stand for."""
        return {"image": self.image, **self.foreign}

    def with_videos(self) -> VisionTokens:
        """The same ids for a request that carries videos."""
        foreign = dict(self.foreign)
        return replace(self, video=foreign.pop("video"), foreign=foreign)

    def with_audio(self) -> VisionTokens:
        """The same ids for a request that carries audio."""
        foreign = dict(self.foreign)
        return replace(self, audio=foreign.pop("audio"), foreign=foreign)
