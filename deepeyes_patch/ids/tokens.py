"""The token ids with a meaning. Standard library only: ``seams.families`` imports it when SGLang starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class VisionTokens:
    """The token ids that a processor gives a meaning to.

    ``foreign``: placeholders of the modalities that the request does not carry, by name (``{"video":
    151656}``); none may stand in its ids. ``video``: the placeholder of videos, in a request that carries
    some.
    """

    image: int
    vision_start: int
    vision_end: int
    foreign: Mapping[str, int] = field(default_factory=dict)
    video: int | None = None

    def with_videos(self) -> VisionTokens:
        """The same ids for a request that carries videos."""
        foreign = dict(self.foreign)
        return replace(self, video=foreign.pop("video"), foreign=foreign)
