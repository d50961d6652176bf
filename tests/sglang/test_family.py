"""The other models of the release's Qwen-VL processor, and PaddleOCR-VL, whose class adds only its markers.

Qwen3-VL and Qwen2.5-VL are in test_processor.py; here every shape of ids, and the refusals, once more for
each further model, because upstream's code asks for the model type in many places.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.seams import families
from tests.lab import family, processors
from tests.lab.installed import has_module
from tests.sglang import rollouts, test_processor, ways
from tests.sglang.rollouts import assert_exact
from tests.sglang.test_processor import PICTURES, REFUSALS, REQUESTS

WAYS = ("default", "pool, retokenize")

SHAPES = (
    "short",
    "short drifted",
    "expanded, four images",
    "drift between",
    "drift after",
    "history expanded, new turn short",
    "history short, new turn expanded",
)
REFUSED = (
    "one pad too few",
    "one pad too many",
    "an image missing",
    "images swapped",
    "a stray pad before the span",
    "a whole span that the model sampled",
    "a video pad without a video",
)


@pytest.fixture(params=family.served())
def kind(request: pytest.FixtureRequest) -> family.Kind:
    return request.param


@pytest.fixture
def folder(kind: family.Kind) -> Path:
    return family.ensure(kind)


@pytest.fixture
def processor_class(kind: family.Kind) -> type:
    return family.processor_class(kind)


def test_every_model_of_the_line_is_there() -> None:
    assert {"qwen2_vl", "qwen3_vl_moe"} <= set(family.served())
    known = all(has_module(f"{package}.qwen3_5") for package in ("sglang.srt.models", "transformers.models"))
    assert known == ("qwen3_5" in family.served())
    qwens = {model.__name__ for model in processors.processor_class().models}  # type: ignore[attr-defined]
    for kind in set(family.served()) - {"paddleocr_vl"}:
        assert family.ARCHITECTURES[kind] in qwens


def test_it_is_served_by_us_or_not_at_all(kind: family.Kind, folder: Path, patched: None) -> None:
    """Constructed with the repair on; the configuration alone, which the gRPC server has, says the same."""
    processor = processors.build(folder, family.processor_class(kind))
    if kind == "paddleocr_vl":
        return  # its configuration may lack what the repair reads, and then it is stock
    config = processors.hf_config(folder)
    assert families.served_type(config) is not None
    assert families.read_config(config) == families.model_of(processor)


@pytest.mark.parametrize("name", SHAPES)
def test_ids_offsets_and_positions_are_exact(name: str, folder: Path, processor: Any, patched: None) -> None:
    request = REQUESTS[name](folder)
    assert_exact(folder, processors.process(processor, list(request.ids), request.images), request)


def test_stock_fails_where_the_patch_is_needed() -> None:
    """All models at once, because some releases never return."""
    folders = {kind: family.ensure(kind) for kind in family.served()}
    wrong = {kind: REQUESTS["drift between"](folder) for kind, folder in folders.items()}
    right = {kind: REQUESTS["short"](folder) for kind, folder in folders.items()}
    made = {kind: ways.build(folder, cls=family.processor_class(kind)) for kind, folder in folders.items()}

    async def send(requests: dict[family.Kind, rollouts.Request], seconds: float) -> dict[family.Kind, Any]:
        work = [
            asyncio.wait_for(processors.process_async(made[kind], list(r.ids), r.images), seconds)
            for kind, r in requests.items()
        ]
        return dict(zip(requests, await asyncio.gather(*work, return_exceptions=True), strict=True))

    for kind, outcome in processors.run(send(right, 60)).items():
        assert_exact(folders[kind], outcome, right[kind])
    for kind, outcome in processors.run(send(wrong, 3)).items():
        assert isinstance(outcome, Exception) or outcome.input_ids != wrong[kind].expected_ids, kind


@pytest.mark.parametrize("form", ["text", "short"])
def test_text_and_short_requests_are_bit_for_bit_stock(
    form: str, folder: Path, processor: Any, request: pytest.FixtureRequest
) -> None:
    text = rollouts.spelled(folder, rollouts.conversation(2))
    prompt = text if form == "text" else rollouts.tokenize(folder, text)
    stock = processors.process(processor, prompt, PICTURES[:2])
    request.getfixturevalue("patched")
    assert_same(processors.process(processor, prompt, PICTURES[:2]), stock)


def assert_same(ours: processors.Processed, theirs: processors.Processed) -> None:
    assert ours.input_ids == theirs.input_ids
    assert ours.offsets == theirs.offsets
    assert ours.padded_input_ids == theirs.padded_input_ids
    assert ours.mrope_position_delta == theirs.mrope_position_delta
    assert (ours.mrope_positions is None) == (theirs.mrope_positions is None)
    if ours.mrope_positions is not None and theirs.mrope_positions is not None:
        assert torch.equal(ours.mrope_positions, theirs.mrope_positions)
    for our_item, their_item in zip(ours.mm_items, theirs.mm_items, strict=True):
        assert torch.equal(our_item.feature, their_item.feature)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_message(name: str, folder: Path, processor: Any, patched: None) -> None:
    ids, images, message = REFUSALS[name](test_processor.Good(folder))
    with pytest.raises(RefusedRequest, match=message):
        processors.process(processor, ids, images)


def test_audio_and_a_video_that_the_ids_do_not_hold(folder: Path, processor: Any, patched: None) -> None:
    request = rollouts.expanded(folder, PICTURES[:1])
    for medium in ("audio", "video"):
        with pytest.raises(RefusedRequest, match=medium):
            processors.process(processor, request.ids, request.images, **{f"{medium}_data": ["a"]})
