"""What is asserted of an episode: its ids, those on the wire, and the log-probs of ``transformers``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.e2e import shapes
from tests.frameworks.wire import Exchange
from tests.lab import policies, reference
from tests.lab.episodes import Episode
from tests.sglang import rollouts

# Of a server in bf16 beside transformers in float32. Of 900 tokens sampled at temperature 1, the worst was
# off by 0.0060.
NOISE = shapes.NOISE
TRIES = 5

# No multiples of a patch, so both are resized; and of different sizes.
PICTURES = [rollouts.picture(400, 300), rollouts.picture(300, 410, seed=1)]


def placeholders(folder: Path) -> list[int]:
    """What a model must not sample: the pads of images and videos, and the beginning of an image."""
    return policies.placeholders(folder)


def expanded(folder: Path, report: dict[str, Any], images: Sequence[Image.Image]) -> Episode:
    """An episode that a framework has recorded with one placeholder an image, as the model saw it."""
    ids, mask, logprobs = (report[name] for name in ("ids", "mask", "logprobs"))
    counts = _counts(folder, ids, images)
    return Episode(_repeated(ids, counts), _repeated(mask, counts), _repeated(logprobs, counts))


def recorded(report: dict[str, Any]) -> Episode:
    """An episode that a framework has recorded with expanded images."""
    return Episode(report["ids"], report["mask"], report["logprobs"])


def assert_same_ids(
    folder: Path, episode: Episode, asked: Sequence[Exchange], images: Sequence[Image.Image]
) -> None:
    """What the framework has recorded is what the server has seen and sampled, turn after turn."""
    sampled: list[int] = []
    for exchange in asked:
        assert exchange.status == 200, exchange.answer
        start, stop = exchange.prompt_tokens, exchange.prompt_tokens + len(exchange.output_ids)
        shown = images[: len(exchange.images)]
        sent = _repeated(exchange.input_ids, _counts(folder, exchange.input_ids, shown))
        assert sent == episode.ids[:start]
        assert exchange.output_ids == episode.ids[start:stop]
        assert exchange.logprobs == episode.logprobs[start:stop]
        sampled += range(start, stop)
    assert sampled == [place for place, bit in enumerate(episode.mask) if bit]


def errors(
    folder: Path, episode: Episode, images: Sequence[Image.Image], forbidden: Sequence[int] = ()
) -> torch.Tensor:
    """float32 [N]: |the server's log-prob - that of transformers on the recorded ids|, per sampled id.

    ``forbidden`` are taken out of the distribution, as the server took them.
    """
    rows = reference.distributions(folder, episode.ids, *shapes.media(folder, images))[:-1].clone()
    rows[:, list(forbidden)] = -torch.inf
    scores = rows.log_softmax(dim=-1).gather(1, torch.tensor(episode.ids[1:])[:, None])[:, 0]
    sampled = torch.tensor(episode.mask[1:], dtype=torch.bool)
    return (torch.tensor(episode.logprobs[1:]) - scores).abs()[sampled]


def assert_exact(
    folder: Path, episode: Episode, images: Sequence[Image.Image], forbidden: Sequence[int] = ()
) -> None:
    """Each sampled id has the log-prob that ``transformers`` gives it, to the rounding of bf16."""
    found = errors(folder, episode, images, forbidden)
    print(f"off by up to {float(found.max()):.4f}, {len(found)} sampled ids")
    assert float(found.max()) < NOISE, found


def assert_served_wrong(
    folder: Path, episode: Episode, asked: Sequence[Exchange], images: Sequence[Image.Image]
) -> None:
    """The server has answered each turn, and it has not used the ids that the framework has recorded."""
    assert all(exchange.status == 200 for exchange in asked)
    assert [exchange.prompt_tokens for exchange in asked] != [start for start, _ in episode.spans]
    found = errors(folder, episode, images)
    print(f"off by up to {float(found.max()):.4f}, {len(found)} sampled ids")
    assert float(found.max()) > shapes.WRONG


# An episode as a framework has recorded it, and the requests of its turns.
Played = tuple[Episode, list[Exchange]]


def until_drifted(folder: Path, play: Callable[[], Played | None]) -> Played:
    """Play episodes until one holds ids that decoding and tokenizing changes. Nearly every one does.

    An episode in which the model has sampled a placeholder does not count; nor does None, an episode that was
    not played to its end.
    """
    pads = set(placeholders(folder))
    for _ in range(TRIES):
        if (played := play()) is None:
            continue
        episode, asked = played
        stray = any(pads & set(exchange.output_ids) for exchange in asked)
        if not stray and drifts(folder, episode.ids[: episode.spans[-1][0]]):
            return episode, asked
    raise AssertionError(f"none of {TRIES} episodes drifts")


def drifts(folder: Path, ids: Sequence[int]) -> bool:
    """Whether decoding and tokenizing makes another number of ids."""
    tokenizer = reference.processor(folder).tokenizer
    again = tokenizer.encode(tokenizer.decode(list(ids)), add_special_tokens=False)
    return len(again) != len(ids)


def _counts(folder: Path, ids: Sequence[int], images: Sequence[Image.Image]) -> list[int]:
    """How many ids of the model's prompt each id stands for."""
    pad = rollouts.vision(folder).image
    if list(ids).count(pad) != len(images):  # expanded already
        return [1] * len(ids)
    merge = reference.processor(folder).image_processor.merge_size
    grids, _ = shapes.media(folder, images)
    sizes = iter([] if grids is None else (grids.prod(dim=1) // merge**2).tolist())
    return [next(sizes) if token == pad else 1 for token in ids]


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
