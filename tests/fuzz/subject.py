"""A release's real processor, given drawn requests; everything that comes of one is judged."""

from __future__ import annotations

import asyncio
import base64
import inspect
import io
import itertools
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import torch
from PIL import Image

from deepeyes_patch.errors import RefusedRequest
from tests.fuzz import requests
from tests.fuzz.oracle import Due, Grid, Words, due, misfit
from tests.fuzz.requests import BROKEN, NARROW_SIZE, SIZES, UNUSABLE_SIZE, Drawn
from tests.lab import models, processors, reference
from tests.sglang import rollouts, ways

# What a plain ValueError may say: SGLang's and transformers' own refusals, which leave as they are.
OF_UPSTREAM = r"aspect ratio|exactly one item"
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
    sizes = SIZES if _resizes_first() else (*SIZES, NARROW_SIZE)
    tokens_of = {size: int(_features(folder, size)[1].prod()) // words.merge**2 for size in sizes}
    return Subject(kind, folder, words, tokens_of, _spelled(folder, vision.image), _formats())


def _resizes_first() -> bool:
    return hasattr(inspect.getmodule(processors.processor_class()), "resize_image_async")


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
    wanted = replace(due(drawn.ids, grids, about.words), media=problems)
    if wanted.is_refused:
        return data, wanted, [], None
    return data, wanted, [grid for grid in grids if grid is not None], torch.cat(features)


def _preprocessed(about: Subject, drawn: Drawn) -> tuple[list[Any], Due, list[Grid], torch.Tensor | None]:
    parts = [_part(about, drawn, number) for number in range(len(drawn.sizes))]
    features = torch.cat([pixels for pixels, _ in parts])
    if drawn.together:
        items = [(features, [row for _, row in parts])]
    else:
        items = [(pixels, [row]) for pixels, row in parts]
    problems = []
    name = "pixel_values" if drawn.preprocessed == "processor_output" else "feature"
    data = []
    grids: list[Grid | None] = []
    for pixels, rows in items:
        sent = _spelled_as(rows, drawn.spelling if drawn.grids == "drawn" else "int64")
        read = sent if isinstance(sent, list) else sent.tolist()
        item = {"format": drawn.preprocessed, name: pixels, "image_grid_thw": sent}
        for row in read:
            wrong = misfit(row, about.words)
            grids.append(None if wrong else (int(row[0]), int(row[1]), int(row[2])))
            problems += [wrong] if wrong else []
        if None not in grids and len(pixels) != _rows_due(about, drawn, grids[-len(rows) :]):
            problems.append(rf"holds {name} of shape .*demands")
        if about.kind == "qwen2_5_vl" and any(grid is not None and grid[0] > 1 for grid in grids):
            # Versions of `transformers` disagree on the t of such an image: 4.57 counts none, 5.19 one.
            problems.append("the M-RoPE positions that SGLang")
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
    wanted = replace(due(drawn.ids, grids, about.words, expanded_only=True), media=problems)
    return data, wanted, [grid for grid in grids if grid is not None], features


def _part(about: Subject, drawn: Drawn, number: int) -> tuple[torch.Tensor, list[Any]]:
    """(features, grid) of one picture; as many rows of features as the grid demands, if it can be."""
    pixels, kept = _features(about.folder, drawn.sizes[number])
    row: list[Any] = kept[0].tolist()
    if drawn.grids == "turned":
        row = [row[0], row[2], row[1]]
    elif drawn.grids == "drawn":
        row = list(drawn.rows[number])
        product = math.prod(row)
        count = int(product) if 0 < product <= requests.MOST_ROWS else 4
        pixels = pixels.repeat(-(-count // len(pixels)), 1)[:count] + number
    if drawn.preprocessed == "precomputed_embedding":
        tokens = len(pixels) // about.words.merge**2
        pixels = torch.arange(tokens * 8, dtype=torch.float32).reshape(tokens, 8) + 1000 * number
    return pixels, row


def _rows_due(about: Subject, drawn: Drawn, grids: Sequence[Grid | None]) -> int:
    """The rows of features that grids demand: one for each patch, or for each token."""
    patches = sum(math.prod(grid) for grid in grids if grid is not None)
    return patches // about.words.merge**2 if drawn.preprocessed == "precomputed_embedding" else patches


def _spelled_as(rows: list[list[Any]], spelling: str) -> Any:
    """The grids of an item in one of `requests.SPELLINGS`; plain lists where that cannot hold them."""
    if spelling == "list":
        return rows
    try:
        if spelling == "numpy":
            return numpy.array(rows, dtype=numpy.float64)
        return torch.tensor(rows, dtype=getattr(torch, spelling))
    except (OverflowError, RuntimeError, TypeError, ValueError):
        return rows


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
        if wanted.is_refused:
            _assert_refused(wanted, outcome, data)
        else:
            assert not isinstance(outcome, BaseException), repr(outcome)
            _assert_served(about, drawn, wanted, grids, features, outcome)


async def _ask(processor: Any, sent: Sequence[list[Any]], data: Sequence[list[Any]]) -> list[Any]:
    work = [processors.process_async(processor, ids, images) for ids, images in zip(sent, data, strict=True)]
    return await asyncio.gather(*work, return_exceptions=True)


def _assert_refused(wanted: Due, outcome: Any, data: Sequence[Any]) -> None:
    told = [*wanted.problems, *wanted.media]
    assert isinstance(outcome, BaseException), f"served, and {told}"
    message = str(outcome)
    if type(outcome) is ValueError:
        assert re.search(OF_UPSTREAM, message), f"an uncounted ValueError: {message}; due: {told}"
    else:
        assert type(outcome) is RefusedRequest, f"{type(outcome).__name__}: {message}; due: {told}"
        assert outcome.counted, "no counter says that it was refused"
    of_media = any(re.search(problem, message, re.DOTALL) for problem in wanted.media)
    of_ids = any(re.search(problem, message, re.DOTALL) for problem in wanted.problems)
    assert of_media or of_ids, f"{message!r} names none of {told}"
    if type(outcome) is RefusedRequest and not of_ids:
        assert outcome.reason == ("inexact" if "do not follow from its input_ids" in message else "media")
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
