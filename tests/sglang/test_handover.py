"""What the scheduler gets of the images of a request with several samples (``n``).

tests/e2e/test_samples.py asks real servers.
"""

from __future__ import annotations

import copy
import importlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab import managers, models
from tests.sglang import rollouts
from tests.sglang.rollouts import picture

IMAGES = [picture(448, 224), picture(224, 224)]


@pytest.fixture
def kind() -> models.Kind:
    return "qwen3_vl"


@pytest.fixture
def module() -> Any:
    found = importlib.import_module(managers.MODULE)
    if not hasattr(found, "wrap_shm_features"):
        pytest.skip("this release hands pixels over without shared memory")
    return found


def items(request: Any) -> list[Any]:
    inputs = request.mm_inputs
    return list(inputs["mm_items"] if isinstance(inputs, dict) else inputs.mm_items)


def tokenized(folder: Path) -> Any:
    request = importlib.import_module("sglang.srt.managers.io_struct").GenerateReqInput(
        input_ids=rollouts.short(folder, IMAGES).ids,
        image_data=list(IMAGES),
        sampling_params={"max_new_tokens": 2},
    )
    return managers.tokenize(managers.manager(folder), request)


def receive(request: Any, module: Any) -> list[torch.Tensor]:
    """Hand a request over, and read its pixels as the scheduler does, which removes the shared memory."""
    module.wrap_shm_features(request)
    features = [item.feature for item in pickle.loads(pickle.dumps(items(request)))]
    assert all(type(feature).__name__ == "ShmPointerMMData" for feature in features)
    return [f.materialize() if hasattr(f, "materialize") else f.tensor for f in features]


def test_each_sample_gets_them(folder: Path, module: Any, patched: None) -> None:
    made = tokenized(folder)
    pixels = [item.feature.clone() for item in items(made)]
    for _ in range(3):
        got = receive(copy.copy(made), module)  # as SGLang copies a request for a sample
        assert all(map(torch.equal, got, pixels))


def test_stock_hands_over_memory_that_is_gone(folder: Path, module: Any) -> None:
    """From 0.5.13 on, SGLang itself gives each sample items of its own before."""
    made = tokenized(folder)
    receive(copy.copy(made), module)
    with pytest.raises((FileNotFoundError, RuntimeError), match="No such file"):
        receive(copy.copy(made), module)


def test_text_is_left_alone(module: Any, patched: None) -> None:
    request = type("Request", (), {"mm_inputs": None})()
    assert module.wrap_shm_features(request) is request
    assert request.mm_inputs is None
