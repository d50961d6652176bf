"""Pre-tokenized requests as a rollout makes them, with what must come of them.

Expected values come from ``transformers`` (grids, positions) and from first principles (the caller's ids
are the ids; the offsets are where the placeholders are).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.lab import processors, reference

VISION_START, IMAGE_PAD, VISION_END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
VIDEO_PAD = "<|video_pad|>"
IMAGE = f"{VISION_START}{IMAGE_PAD}{VISION_END}"

# Multiples of 28 and of 32, because 0.5.3 - 0.5.5.post1 resize other sizes twice; and at least 65536 px, the
# real lower bound of Qwen3-VL, which the slow image processor of 0.5.3 does not know.
SIZES = [(448, 224), (448, 448), (224, 672), (672, 448)]


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A seeded colour gradient with noise, so that no two pictures share features."""
    generator = torch.Generator().manual_seed(1000 * width + height + 7 * seed)
    noise = torch.randint(0, 64, (height, width, 3), generator=generator, dtype=torch.uint8)
    ramp = torch.linspace(0, 191, width).to(torch.uint8)[None, :, None].expand(height, -1, 3)
    return Image.fromarray((noise + ramp).numpy())


@dataclass(frozen=True)
class Request:
    """What the caller sends (``ids``, ``images``), and the ids that the model must see."""

    ids: list[int]
    images: list[Image.Image]
    expected_ids: list[int]


@dataclass(frozen=True)
class Vision:
    start: int
    image: int
    end: int
    video: int


@cache
def vision(folder: Path) -> Vision:
    tokenizer = reference.processor(folder).tokenizer
    names = [spelled(folder, token) for token in (VISION_START, IMAGE_PAD, VISION_END, VIDEO_PAD)]
    return Vision(*tokenizer.convert_tokens_to_ids(names))


def spelled(folder: Path, text: str) -> str:
    """The text with the model's own markers, for a model that has other ones than Qwen's."""
    own = json.loads((folder / "tokenizer_config.json").read_text()).get("extra_special_tokens") or {}
    for qwens, name in (
        (VISION_START, "vision_bos_token"),
        (IMAGE_PAD, "image_token"),
        (VISION_END, "vision_eos_token"),
        (VIDEO_PAD, "video_token"),
    ):
        text = text.replace(qwens, own.get(name, qwens))
    return text


def tokenize(folder: Path, text: str) -> list[int]:
    return reference.processor(folder).tokenizer.encode(text, add_special_tokens=False)


def conversation(image_count: int) -> str:
    """One turn for each image, in Qwen's chat format."""
    turns = [
        f"<|im_start|>user\n{IMAGE}Where is the object number {turn} in this picture?<|im_end|>\n"
        f"<|im_start|>assistant\nThe object is near the corner, so I will zoom in again.<|im_end|>\n"
        for turn in range(image_count)
    ]
    return "".join(turns) + "<|im_start|>assistant\n"


def expanded(folder: Path, images: Sequence[Image.Image], text: str | None = None) -> Request:
    """Every image expanded by the HF processor, as a trainer keeps it."""
    text = spelled(folder, conversation(len(images)) if text is None else text)
    ids = reference.expand(folder, text, images).input_ids
    return Request(ids, list(images), ids)


def short(folder: Path, images: Sequence[Image.Image], text: str | None = None) -> Request:
    """One placeholder per image: SGLang's own convention."""
    full = expanded(folder, images, text)
    text = spelled(folder, conversation(len(images)) if text is None else text)
    return replace(full, ids=tokenize(folder, text))


def mixed(folder: Path, images: Sequence[Image.Image], short_ones: set[int]) -> Request:
    """The images in ``short_ones`` with one placeholder, the others expanded."""
    full = expanded(folder, images)
    token = vision(folder).image
    ids, image, inside = [], -1, False
    for value in full.ids:
        if value != token:
            inside = False
        elif not inside:
            image, inside = image + 1, True
        elif image in short_ones:
            continue
        ids.append(value)
    return replace(full, ids=ids)


def image_grids(folder: Path, images: Sequence[Image.Image]) -> torch.Tensor:
    """int64 [images, 3], from the HF image processor."""
    made = reference.processor(folder).image_processor(images=list(images), return_tensors="pt")
    return made["image_grid_thw"]


def spans(folder: Path, ids: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of the image placeholder."""
    return runs_of(vision(folder).image, ids)


def runs_of(token: int, ids: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of a token, found the slow and obvious way."""
    runs: list[tuple[int, int]] = []
    for position, value in enumerate(ids):
        if value != token:
            continue
        if runs and runs[-1][1] == position - 1:
            runs[-1] = (runs[-1][0], position)
        else:
            runs.append((position, position))
    return runs


def drifted(folder: Path, request: Request, region: str, seed: int = 0) -> Request:
    """Split tokens of the text ``before``, ``between`` or ``after`` the images.

    The ids still decode to the same text, and tokenizing that text does not give them back: this is
    what a model really samples.
    """
    runs = spans(folder, request.ids)
    bounds = {
        "before": (0, runs[0][0] - 1),
        "between": (runs[0][1] + 2, runs[-1][0] - 1),
        "after": (runs[-1][1] + 2, len(request.ids)),
    }
    low, high = bounds[region]
    splits = _splits(folder)
    choices = [i for i in range(low, high) if request.ids[i] in splits]
    assert choices, f"no token {region} the images can be split"
    chosen = set(random.Random(seed).sample(choices, k=min(4, len(choices))))

    def rewritten(ids: Sequence[int], shift_of: dict[int, int]) -> list[int]:
        wanted = {shift_of[i] for i in chosen}
        return [
            piece for i, token in enumerate(ids) for piece in (splits[token] if i in wanted else (token,))
        ]

    return Request(
        rewritten(request.ids, {i: i for i in chosen}),
        request.images,
        rewritten(request.expected_ids, _aligned(folder, request)),
    )


def _aligned(folder: Path, request: Request) -> dict[int, int]:
    """Position in ``ids`` -> position in ``expected_ids``, for everything outside the images."""
    sent, seen = spans(folder, request.ids), spans(folder, request.expected_ids)
    aligned, shift, position = {}, 0, 0
    for (first, last), (wide_first, wide_last) in zip(sent, seen, strict=True):
        for i in range(position, first):
            aligned[i] = i + shift
        shift += (wide_last - wide_first) - (last - first)
        position = last + 1
    for i in range(position, len(request.ids)):
        aligned[i] = i + shift
    return aligned


@cache
def _splits(folder: Path) -> dict[int, tuple[int, int]]:
    """For each token that two others spell: those two."""
    tokenizer = reference.processor(folder).tokenizer
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    vocabulary = {piece: i for piece, i in tokenizer.get_vocab().items() if i not in special}
    splits = {}
    for piece, i in vocabulary.items():
        for cut in range(1, len(piece)):
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary:
                splits[i] = (vocabulary[piece[:cut]], vocabulary[piece[cut:]])
                break
    return splits


def attempt(processor: Any, request: Request, text: str | None = None, seconds: float = 10) -> Any:
    """The result, or the exception in its place, for the ids or for ``text`` with the same images.

    Some stock releases never return, others raise whatever their code runs into.
    """
    work = processors.process_async(processor, text or list(request.ids), request.images)
    try:
        return processors.run(asyncio.wait_for(work, seconds))
    except (AssertionError, LookupError, RuntimeError, TimeoutError, TypeError, ValueError) as error:
        return error


def assert_exact(folder: Path, result: Any, request: Request, grids: torch.Tensor | None = None) -> None:
    """The result is what the request's own ids demand, in every part that the model reads."""
    if grids is None:
        grids = image_grids(folder, request.images)
    assert result.input_ids == request.expected_ids
    assert result.offsets == spans(folder, request.expected_ids)
    assert torch.equal(torch.as_tensor(result.grids), grids)
    # One text token more changes nothing before it, and transformers 4 reads past a last vision_start.
    positions, delta = reference.positions(folder, [*request.expected_ids, 0], grids)
    assert torch.equal(result.mrope_positions, positions[:, :-1])
    assert result.mrope_position_delta == delta
    if result.padded_input_ids is not None:
        inside = {i for first, last in result.offsets for i in range(first, last + 1)}
        assert len(result.padded_input_ids) == len(request.expected_ids)
        for i, (padded, token) in enumerate(zip(result.padded_input_ids, request.expected_ids, strict=True)):
            assert (padded != token) == (i in inside)
