"""An episode as a trainer keeps it, or as an example prints it. Standard library."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Episode:
    """``ids``, ``mask``, ``logprobs``: all [T], with expanded images. ``mask`` is 1 for a sampled id."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(start, stop) of each run of sampled ids."""
        neighbours = zip([0, *self.mask], [*self.mask, 0], strict=True)
        edges = [place for place, (one, other) in enumerate(neighbours) if one != other]
        return list(zip(edges[::2], edges[1::2], strict=True))
