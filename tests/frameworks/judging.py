"""What is asserted of an episode: its ids, those on the wire, and the log-probs of ``transformers``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.e2e import shapes
from tests.frameworks.wire import Exchange
from tests.lab import reference
from tests.sglang import rollouts

# Of a server in bf16 beside transformers in float32.
NOISE = 5e-3

# No multiples of a patch, so both are resized; and of different sizes.
PICTURES = [rollouts.picture(400, 300), rollouts.picture(300, 410, seed=1)]


@dataclass(frozen=True)
class Episode:
    """What a framework has recorded. ``ids``, ``mask`` and ``logprobs`` [T]; images are expanded."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(start, stop) of each answer."""
        neighbours = zip([0, *self.mask], [*self.mask, 0], strict=True)
        edges = [place for place, (one, other) in enumerate(neighbours) if one != other]
        return list(zip(edges[::2], edges[1::2], strict=True))


def placeholders(folder: Path) -> list[int]:
    """The pads of images and videos, which a model must not sample."""
    vision = rollouts.vision(folder)
    return [vision.image, vision.video]


def expanded(folder: Path, report: dict[str, Any], images: Sequence[Image.Image]) -> Episode:
    """An episode that a framework has recorded with one placeholder an image, as the model saw it."""
    pad = rollouts.vision(folder).image
    counts = iter(_counts(folder, images))
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for token, bit, score in zip(report["ids"], report["mask"], report["logprobs"], strict=True):
        count = next(counts) if token == pad else 1
        ids += [token] * count
        mask += [bit] * count
        logprobs += [score] * count
    assert next(counts, None) is None, "each image has its placeholder"
    return Episode(ids, mask, logprobs)


def recorded(report: dict[str, Any]) -> Episode:
    """An episode that a framework has recorded with expanded images."""
    return Episode(report["ids"], report["mask"], report["logprobs"])


def assert_same_ids(episode: Episode, asked: Sequence[Exchange]) -> None:
    """What the framework has recorded is what the server has seen and sampled, turn after turn."""
    assert len(episode.spans) == len(asked)
    for (start, stop), exchange in zip(episode.spans, asked, strict=True):
        assert exchange.status == 200, exchange.answer
        assert exchange.prompt_tokens == start
        assert exchange.output_ids == episode.ids[start:stop]
        assert exchange.logprobs == episode.logprobs[start:stop]


def errors(folder: Path, episode: Episode, images: Sequence[Image.Image]) -> torch.Tensor:
    """float32 [N]: |the server's log-prob - that of transformers on the recorded ids|, per sampled id."""
    grids, pixels = shapes.media(folder, images)
    first = episode.spans[0][0]
    scores = reference.logprobs(folder, episode.ids[:first], grids, pixels, episode.ids[first:])
    sampled = torch.tensor(episode.mask[first:], dtype=torch.bool)
    return (torch.tensor(episode.logprobs[first:]) - scores).abs()[sampled]


def drifts(folder: Path, ids: Sequence[int]) -> bool:
    """Whether decoding and tokenizing ids gives other ids."""
    tokenizer = reference.processor(folder).tokenizer
    again = tokenizer.encode(tokenizer.decode(list(ids)), add_special_tokens=False)
    return bool(list(ids) != again)


def _counts(folder: Path, images: Sequence[Image.Image]) -> list[int]:
    """How many tokens each image has."""
    merge = reference.processor(folder).image_processor.merge_size
    grids, _ = shapes.media(folder, images)
    return [] if grids is None else (grids.prod(dim=1) // merge**2).tolist()
