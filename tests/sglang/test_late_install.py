"""`install` in a process that has imported SGLang's models, or built one."""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

import deepeyes_patch
from deepeyes_patch.errors import DeepEyesPatchError
from deepeyes_patch.seams.table_mrope import ROTARY_EMBEDDING
from tests.lab import processors


@pytest.fixture
def models() -> Any:
    processors.processor_class()
    return importlib.import_module("sglang.srt.models.qwen3_vl")


def test_a_module_that_is_not_sglangs_gets_the_wrapper(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model outside of SGLang, which has imported the function under a name of its own."""
    rotary = importlib.import_module(ROTARY_EMBEDDING)
    stock = rotary.get_rope
    module = ModuleType("someones_model")
    vars(module)["make_rope"] = stock
    monkeypatch.setitem(sys.modules, module.__name__, module)
    deepeyes_patch.install(["mrope"])
    try:
        assert rotary.get_rope is not stock
        assert vars(module)["make_rope"] is rotary.get_rope
    finally:
        deepeyes_patch.uninstall()
    assert vars(module)["make_rope"] is rotary.get_rope is stock


def test_a_model_that_is_built_already_is_refused(models: Any) -> None:
    """Its ropes are those of stock, and nothing changes them any more."""
    model = models.Qwen3VLForConditionalGeneration.__new__(models.Qwen3VLForConditionalGeneration)
    deepeyes_patch.install(["mrope"])  # a constructor that raises leaves such an object in its traceback
    deepeyes_patch.uninstall()
    torch.nn.Module.__init__(model)
    model.model = torch.nn.Linear(1, 1)
    with pytest.raises(DeepEyesPatchError, match="has built Qwen3VLForConditionalGeneration already"):
        deepeyes_patch.install(["mrope"])
    assert deepeyes_patch.status()["mrope"] == "off"
    del model
    gc.collect()
    deepeyes_patch.install(["mrope"])
    deepeyes_patch.uninstall()
