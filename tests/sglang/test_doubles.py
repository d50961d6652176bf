"""Stand-ins for a model's configuration and for the processor, as SGLang's own unit tests make them.

With the switch on they must construct and work as in stock SGLang. They lack what only our check of the
vocabulary reads: construction demanded ``hf_config.get_text_config()``, and five of SGLang 0.5.18's own tests
failed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import deepeyes_patch
from deepeyes_patch.errors import InternalError
from tests.lab import models, processors
from tests.sglang import rollouts
from tests.sglang.rollouts import assert_exact, picture

WAYS = ("default",)
IMAGES = [picture(448, 224)]


@pytest.fixture
def folder() -> Path:
    return models.ensure("qwen2_5_vl")


def double(folder: Path, model_type: str = "qwen2_5_vl") -> Any:
    """A configuration with the attributes that SGLang's own tests give it, and no others."""
    tokens = rollouts.vision(folder)
    return SimpleNamespace(
        model_type=model_type,
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        vision_start_token_id=tokens.start,
        image_token_id=tokens.image,
        vision_end_token_id=tokens.end,
        video_token_id=tokens.video,
        vision_config=SimpleNamespace(spatial_merge_size=2, tokens_per_second=2),
    )


def test_a_processor_is_constructed_and_serves(folder: Path, patched: None) -> None:
    processor = processors.build(folder, config=double(folder))
    for request in (rollouts.expanded(folder, IMAGES), rollouts.short(folder, IMAGES)):
        assert_exact(folder, processors.process(processor, list(request.ids), IMAGES), request)
    with pytest.raises(deepeyes_patch.RefusedRequest, match="hold -1 at position 0"):
        processors.process(processor, [-1], IMAGES)


def test_text_is_stock(folder: Path, request: pytest.FixtureRequest) -> None:
    text = rollouts.conversation(1)
    stock = processors.process(processors.build(folder, config=double(folder)), text, IMAGES)
    request.getfixturevalue("patched")
    patched = processors.process(processors.build(folder, config=double(folder)), text, IMAGES)
    assert patched.input_ids == stock.input_ids
    assert torch.equal(patched.mrope_positions, stock.mrope_positions)


class _Reached(Exception):
    """The loader that a test has put on the object."""


DOUBLES: dict[str, dict[str, Any]] = {
    "bare": {},
    "another model": {"hf_config": SimpleNamespace(model_type="other")},
    "a model that is served": {"hf_config": SimpleNamespace(model_type="qwen3_5")},
}


@pytest.mark.parametrize("prompt", ["text", [100, 101, 102]], ids=["text", "ids"])
@pytest.mark.parametrize("attributes", DOUBLES)
def test_an_object_that_was_never_constructed(
    prompt: Any, attributes: str, request: pytest.FixtureRequest
) -> None:
    """SGLang's tests make the object with ``__new__``, and give it what the method under test reads."""
    cls = processors.processor_class()
    processor = cls.__new__(cls)
    vars(processor).update(DOUBLES[attributes], mm_tokens=object(), video_config={})
    processor.mm_preprocess_cache = SimpleNamespace(enabled=False)

    def load(*args: Any, **kwargs: Any) -> Any:
        raise _Reached

    for name in ("load_mm_data", "fast_load_mm_data", "legacy_load_mm_data"):
        setattr(processor, name, load)

    def ask() -> None:
        asyncio.run(
            processor.process_mm_data_async(
                image_data=["unused"],
                input_text=prompt,
                request_obj=SimpleNamespace(rid="r", video_data=None, audio_data=None),
                max_req_input_len=100,
            )
        )

    with pytest.raises(_Reached):
        ask()
    request.getfixturevalue("patched")
    if attributes == "a model that is served" and prompt != "text":
        # Without knowing its tokens nobody can say whether the ids are served right.
        with pytest.raises(InternalError, match="no attribute"):
            ask()
    else:
        with pytest.raises(_Reached):
            ask()
