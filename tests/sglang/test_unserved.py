"""Classes that derive from the Qwen-VL processor and are not served by us.

InternS1 and POINTS override the outermost method and inherit the methods below it, which we have wrapped.
PaddleOCR-VL inherits everything; with a configuration that names no ``vision_end_token_id`` it lacks what the
repair reads. Text and short requests must get stock's own results. Ids that stock would explode on, or turn
into others, must be refused with a clear message.

The HF processors of InternS1 and POINTS are code from the hub. Here these classes run on the HF processors of
the Qwen models that they were made from.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deepeyes_patch
from deepeyes_patch.errors import RefusedRequest
from tests.lab import family, managers, models, processors
from tests.lab.installed import has_module
from tests.sglang import rollouts
from tests.sglang.rollouts import Request, picture, spans
from tests.sglang.test_family import assert_same
from tests.sglang.ways import avoids_retokenizing

IMAGES = [picture(448, 224), picture(448, 448)]


def _interns1() -> Any:
    return processors.build(
        family.ensure("qwen3_vl_moe"), family.derived_class("interns1pro", "InternS1_1ImageProcessor")
    )


def _points() -> Any:
    folder = family.ensure("qwen2_vl")
    cls = family.derived_class("points_v15_chat", "POINTSV15ChatProcessor")
    qwens = processors.hf_config(folder)
    config = importlib.import_module("sglang.srt.configs.points_v15_chat").POINTSV15ChatConfig(
        vision_config=qwens.vision_config, image_token_id=qwens.image_token_id
    )
    return processors.build(folder, cls, config)


def _without_vision_end(folder: Path) -> Any:
    config = copy.deepcopy(processors.hf_config(folder))  # SGLang keeps it for the process
    vars(config)["vision_end_token_id"] = None  # past the type check of recent configuration classes
    return config


def _paddleocr_without_vision_end() -> Any:
    folder = family.ensure("paddleocr_vl")
    config = _without_vision_end(folder)
    return processors.build(folder, family.processor_class("paddleocr_vl"), config)


BUILDERS: dict[str, Callable[[], Any]] = {
    "interns1pro": _interns1,
    "points_v15_chat": _points,
    "paddleocr_vlm": _paddleocr_without_vision_end,
}
FOLDERS: dict[str, family.Kind] = {
    "interns1pro": "qwen3_vl_moe",
    "points_v15_chat": "qwen2_vl",
    "paddleocr_vlm": "paddleocr_vl",
}
# 0.5.3 has none of them.
PRESENT = [
    name
    for name in BUILDERS
    if has_module(f"sglang.srt.multimodal.processors.{name}")
    and (name != "paddleocr_vlm" or "paddleocr_vl" in family.served())
]
KEEPING = ["1", "0"] if avoids_retokenizing() else [""]


@pytest.fixture(params=PRESENT, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(name: str) -> Path:
    return family.ensure(FOLDERS[name])


@pytest.fixture(scope="module")
def unserved(name: str) -> Any:
    """Constructed where the repair is on, as in a server; that must not stop it."""
    deepeyes_patch.install(["processor"])
    try:
        return BUILDERS[name]()
    finally:
        deepeyes_patch.uninstall()


@pytest.fixture(params=KEEPING)
def keeping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """SGLANG_MM_AVOID_RETOKENIZE, where the release has it: on, upstream often keeps the ids."""
    if request.param:
        monkeypatch.setenv("SGLANG_MM_AVOID_RETOKENIZE", request.param)
    return request.param


def process(unserved: Any, prompt: Any, images: Any, seconds: float = 60) -> Any:
    """As the tokenizer manager asks, where the repair looks at what such a class makes."""
    return managers.process(unserved, models.ensure("qwen3_vl"), prompt, images, seconds)


def attempt(unserved: Any, sent: Request) -> Any:
    """The result, or the exception in its place."""
    try:
        return process(unserved, sent.ids, sent.images, seconds=3)
    except (AssertionError, LookupError, RuntimeError, TimeoutError, TypeError, ValueError) as error:
        return error


def is_exact(folder: Path, outcome: Any, request: Request) -> bool:
    """Ids and offsets; these classes leave the positions to others or to stock."""
    return (
        not isinstance(outcome, Exception)
        and outcome.input_ids == request.expected_ids
        and outcome.offsets == spans(folder, request.expected_ids)
    )


@pytest.mark.parametrize("form", ["text", "short"])
def test_text_and_short_requests_are_bit_for_bit_stock(
    form: str, folder: Path, unserved: Any, keeping: str, request: pytest.FixtureRequest
) -> None:
    text = rollouts.spelled(folder, rollouts.conversation(2))
    prompt = text if form == "text" else rollouts.tokenize(folder, text)
    stock = process(unserved, prompt, IMAGES)
    request.getfixturevalue("patched")
    ours = process(unserved, prompt, IMAGES)
    assert_same(ours, stock)
    assert is_exact(folder, ours, rollouts.short(folder, IMAGES))


def test_drifted_short_ids_are_exact_or_refused(
    folder: Path, unserved: Any, keeping: str, request: pytest.FixtureRequest
) -> None:
    sent = rollouts.drifted(folder, rollouts.short(folder, IMAGES), "between")
    stock = attempt(unserved, sent)
    request.getfixturevalue("patched")
    ours = attempt(unserved, sent)
    if is_exact(folder, stock, sent):
        assert_same(ours, stock)
    else:
        assert isinstance(ours, RefusedRequest)
        assert "are not the caller's" in str(ours)
    if keeping != "1":
        assert isinstance(ours, RefusedRequest), "stock was thought to drift here"


def test_expanded_ids_are_refused(
    folder: Path, unserved: Any, keeping: str, request: pytest.FixtureRequest
) -> None:
    sent = rollouts.drifted(folder, rollouts.expanded(folder, IMAGES), "between")
    assert not is_exact(folder, attempt(unserved, sent), sent)
    request.getfixturevalue("patched")
    first, last = spans(folder, sent.ids)[0]
    with pytest.raises(
        RefusedRequest, match=rf"hold {last - first + 1} image placeholders.*position {first} on"
    ):
        process(unserved, sent.ids, sent.images)


def test_wrong_counts_and_strays_are_refused(folder: Path, unserved: Any, patched: None) -> None:
    ids, token = rollouts.short(folder, IMAGES).ids, rollouts.vision(folder).image
    for wrong, images, message in (
        (ids, IMAGES[:1], r"hold 2 image placeholder.*1 image"),
        (ids, IMAGES + IMAGES[:1], r"hold 2 image placeholder.*3 image"),
        ([*ids, token], IMAGES, r"hold 3 image placeholder.*2 image"),
    ):
        with pytest.raises(RefusedRequest, match=message):
            process(unserved, wrong, images)
    # Upstream takes this one for text, and drops the image.
    stray = [*rollouts.tokenize(folder, "Look: "), token]
    with pytest.raises(ValueError, match=r"are not the caller's|placed images at|Mismatch|mismatch"):
        process(unserved, stray, IMAGES[:1])


def test_a_qwen_model_without_vision_end_is_not_constructed(patched: None) -> None:
    folder = models.ensure("qwen3_vl")
    config = _without_vision_end(folder)
    with pytest.raises(deepeyes_patch.IncompatibleSGLangError, match="vision_end token id is None"):
        processors.build(folder, config=config)
