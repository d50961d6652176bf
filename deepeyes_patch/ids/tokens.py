"""The special token ids. Standard library only: ``seams.families`` imports this module when SGLang starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class VisionTokens:
    """The special token ids of a processor.

    ``foreign``: placeholders of the modalities that the request does not carry, by name (``{"video":
    151656}``). Its ids may hold none of them. ``video``: the placeholder of videos, if the request carries
    videos.
    """

    image: int
    vision_start: int
    vision_end: int
    foreign: Mapping[str, int] = field(default_factory=dict)
    video: int | None = None

    @property
    def placeholders(self) -> dict[str, int]:
        """The placeholders of a request without media, by the modality that they stand for."""
        return {"image": self.image, **self.foreign}

    def with_videos(self) -> VisionTokens:
        """The same ids for a request that carries videos."""
        foreign = dict(self.foreign)
        return replace(self, video=foreign.pop("video"), foreign=foreign)
