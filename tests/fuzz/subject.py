"""A release's real processor, given drawn requests; everything that comes of one is judged."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image

from tests.fuzz import requests
from tests.fuzz.oracle import Due, Grid, Words, due
from tests.fuzz.requests import BROKEN, SIZES, UNUSABLE_SIZE, Drawn
from tests.lab import models, processors, reference
from tests.sglang import rollouts, ways

# What the message must match where images cannot be used.
LOADING = r"an image could not be loaded"
NO_IMAGE = r"image_data\[{}\] is .*no image"


@dataclass(frozen=True)
class Subject:
    """One tiny model's processor; ``words`` and ``tokens_of`` are what a caller knows about it."""

    kind: models.Kind
    folder: Path
    words: Words
    tokens_of: dict[tuple[int, int], int]
    spelled: list[int]
    formats: tuple[str, ...]

    def requests(self) -> Any:
        return requests.requests(self.words, self.tokens_of, self.spelled, self.formats)


@cache
def subject(kind: models.Kind) -> Subject:
    folder = models.ensure(kind)
    vision = rollouts.vision(folder)
    config = processors.hf_config(folder)
    words = Words(
        *(vision.start, vision.image, vision.end, vision.video),
        vocabulary=config.get_text_config().vocab_size,
        merge=config.vision_config.spatial_merge_size,
    )
    tokens_of = {size: int(_features(folder, size)[1].prod()) // words.merge**2 for size in SIZES}
    return Subject(kind, folder, words, tokens_of, _spelled(folder, vision.image), _formats())


def _formats() -> tuple[str, ...]:
    from sglang.srt.managers import schedule_batch

    known = hasattr(schedule_batch, "MultimodalInputFormat")
    return ("processor_output", "precomputed_embedding") if known else ("processor_output",)


def _spelled(folder: Path, token: int) -> list[int]:
    """A placeholder and its markers, letter by letter."""
    tokenizer = reference.processor(folder).tokenizer
    return [tokenizer.convert_tokens_to_ids(letter) for letter in rollouts.IMAGE]


@cache
def _picture(size: tuple[int, int]) -> Image.Image:
    return rollouts.picture(*size)


@cache
def _features(folder: Path, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixel values [patches, ...] and grid int64 [1, 3] of the picture, as ``transformers`` makes them."""
    made = reference.processor(folder).image_processor(images=[_picture(size)], return_tensors="pt")
    return made["pixel_values"], made["image_grid_thw"]


@cache
def _png(size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    _picture(size).save(buffer, "PNG")
    return buffer.getvalue()


def _sent(size: tuple[int, int], form: str) -> Any:
    if form == "picture":
        return _picture(size)
    if form == "png":
        return _png(size)
    if form == "data URL":
        return "data:image/png;base64," + base64.b64encode(_png(size)).decode()
    return _png(size)[: len(_png(size)) // 2] if form == "half a PNG" else BROKEN[form]


# --- what is sent, and what is due --------------------------------------------------------------------


def prepare(about: Subject, drawn: Drawn) -> tuple[list[Any], Due, list[Grid], torch.Tensor | None]:
    """``image_data``; what is due; and, where it is to be served, the grids and features to be seen."""
    if drawn.preprocessed:
        return _preprocessed(about, drawn)
    data, grids, problems, features = [], [], [], []
    for index, (size, form) in enumerate(zip(drawn.sizes, drawn.forms, strict=True)):
        data.append(_sent(size, form))
        grid = None
        if form in BROKEN:
            given = data[-1]
            loadable = isinstance(given, (bytes, str))
            problems.append(LOADING if loadable else NO_IMAGE.format(index))
        elif size == UNUSABLE_SIZE:
            problems.append("aspect ratio")
        else:
            pixels, row = _features(about.folder, size)
            features.append(pixels)
            grid = _grid(row)
        grids.append(grid)
    wanted = due(drawn.ids, grids, about.words)
    wanted = replace(wanted, problems=[*wanted.problems, *problems])
    if wanted.problems:
        return data, wanted, [], None
    return data, wanted, [grid for grid in grids if grid is not None], torch.cat(features)


def _preprocessed(about: Subject, drawn: Drawn) -> tuple[list[Any], Due, list[Grid], torch.Tensor | None]:
    merged = about.words.merge**2
    items, problems, grids, features = [], [], [], []
    for number, size in enumerate(drawn.sizes):
        pixels, row = _features(about.folder, size)
        if drawn.grids == "turned":
            row = row[:, [0, 2, 1]]
        if drawn.preprocessed == "precomputed_embedding":
            tokens = len(pixels) // merged
            pixels = torch.arange(tokens * 8, dtype=torch.float32).reshape(tokens, 8) + 1000 * number
        features.append(pixels)
        grids.append(_grid(row))
        items.append((pixels, row))
    if drawn.together:
        items = [(torch.cat([pixels for pixels, _ in items]), torch.cat([row for _, row in items]))]
    elif len(items) > 1:
        # Upstream's own rule from 0.5.7 on; before, it gives each item the places of all images.
        problems.append("exactly one item|the image offsets that SGLang")
    name = "pixel_values" if drawn.preprocessed == "processor_output" else "feature"
    data = []
    for pixels, row in items:
        item = {"format": drawn.preprocessed, name: pixels, "image_grid_thw": row}
        if drawn.grids == "short":
            item[name] = pixels[:-1]
            problems.append(rf"holds {name} of shape .*demands {len(pixels)} rows")
        elif drawn.grids == "missing":
            del item["image_grid_thw"]
            problems.append("holds no image_grid_thw")
        elif drawn.grids == "bad":
            item["image_grid_thw"] = [[1, 2.5, -3]]
            problems.append("image_grid_thw must be")
        data.append(item)
    wanted = due(drawn.ids, grids, about.words, expanded_only=True)
    wanted = replace(wanted, problems=[*wanted.problems, *problems])
    return data, wanted, grids, torch.cat(features)


def _grid(row: torch.Tensor) -> Grid:
    t, h, w = row[0].tolist()
    return t, h, w


# --- asking and judging -------------------------------------------------------------------------------


def check(about: Subject, way: str, group: Sequence[Drawn]) -> None:
    """Ask for all of them at the same time, and judge each.

    Raises
    ------
    AssertionError
        A result that is not what is due, or an exception that is no fitting refusal.
    """
    prepared = [prepare(about, drawn) for drawn in group]
    sent = [list(drawn.ids) for drawn in group]
    with mock.patch.dict(os.environ, ways.variables(way)):
        processor = ways.build(about.folder, way)
        outcomes = processors.run(_ask(processor, sent, [data for data, *_ in prepared]))
    for drawn, ids, (data, wanted, grids, features), outcome in zip(
        group, sent, prepared, outcomes, strict=True
    ):
        assert ids == drawn.ids, "the caller's list was changed"
        if wanted.problems:
            _assert_refused(wanted, outcome, data)
        else:
            assert not isinstance(outcome, BaseException), repr(outcome)
            _assert_served(about, drawn, wanted, grids, features, outcome)


async def _ask(processor: Any, sent: Sequence[list[Any]], data: Sequence[list[Any]]) -> list[Any]:
    work = [processors.process_async(processor, ids, images) for ids, images in zip(sent, data, strict=True)]
    return await asyncio.gather(*work, return_exceptions=True)


def _assert_refused(wanted: Due, outcome: Any, data: Sequence[Any]) -> None:
    assert isinstance(outcome, BaseException), f"served, and {wanted.problems}"
    assert type(outcome) is ValueError, f"{type(outcome).__name__}: {outcome}; due: {wanted.problems}"
    message = str(outcome)
    assert any(re.search(problem, message, re.DOTALL) for problem in wanted.problems), (
        f"{message!r} names none of {wanted.problems}"
    )
    assert "prompt placeholders" not in message, "upstream's signal to fall back"
    assert len(message) < 2000, "the message repeats the data"


def _assert_served(
    about: Subject,
    drawn: Drawn,
    wanted: Due,
    grids: Sequence[Grid],
    features: torch.Tensor | None,
    outcome: Any,
) -> None:
    assert features is not None
    request = rollouts.Request(drawn.ids, [], wanted.ids)
    rollouts.assert_exact(about.folder, outcome, request, grids=torch.tensor(grids))
    found = [
        part.reshape(-1, features.shape[-1])
        for item in outcome.mm_items
        for part in (item.feature, item.precomputed_embeddings)
        if part is not None
    ]
    assert torch.equal(torch.cat(found).float(), features), "other features, or in another order"
    pairs = [pair for item in outcome.mm_items for pair in item.offsets]
    assert list(itertools.chain(pairs)) == sorted(pairs), "items out of order"
