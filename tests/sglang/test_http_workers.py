"""What SGLang hands to its HTTP workers, when those would be started unrepaired."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepeyes_patch.errors import DeepEyesPatchError
from deepeyes_patch.startup import stops as workers
from tests.lab import models, processors


def hand_over(folder: Path) -> Any:
    """As the first process does before it starts workers; the shared memory that they would read."""
    processors.processor_class()  # on 0.5.3 the mixin alone runs into a circular import
    mixin = importlib.import_module("sglang.srt.managers.multi_tokenizer_mixin")
    args = SimpleNamespace(model_path=str(folder), trust_remote_code=False, revision=None)
    memory = mixin.write_data_for_multi_tokenizer(SimpleNamespace(), args, {})
    memory.close()
    memory.unlink()
    return memory


@pytest.fixture
def unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "started_children_are_reached", lambda: False)


def test_stock_starts_them(folder: Path) -> None:
    assert hand_over(folder) is not None


def test_refused(folder: Path, kind: models.Kind, patched: None, unreached: None) -> None:
    with pytest.raises(DeepEyesPatchError, match=f"requests of this {kind} model unrepaired"):
        hand_over(folder)


def test_a_text_only_model_has_its_workers(patched: None, unreached: None) -> None:
    assert hand_over(models.ensure("qwen3")) is not None


def test_whoever_is_reached_has_them(folder: Path, patched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """This environment's ``.pth`` is read, so a Python started from here has our finder."""
    monkeypatch.setenv("DEEPEYES_PATCH", "1")
    assert workers.started_children_are_reached()
    assert hand_over(folder) is not None
    monkeypatch.setenv("DEEPEYES_PATCH", "off")
    assert not workers.started_children_are_reached(), "the question can be answered with no"
