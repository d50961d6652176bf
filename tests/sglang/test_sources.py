"""The states that ``doctor`` reads in this release's source are those that ``install`` comes to."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import deepeyes_patch
from deepeyes_patch.cli import deep, repairs
from tests.lab import processors


def examined() -> dict[str, repairs.Repair]:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    return repairs.examine_all(
        Path(next(iter(spec.submodule_search_locations))),
        {"processor", "mrope", "video", "sampling", "deepstack"},
    )


def imported(name: str) -> Any:
    return importlib.import_module(name)


def test_the_states_are_what_installing_makes_of_them() -> None:
    processors.processor_class()
    rope = imported("sglang.srt.layers.rotary_embedding")
    found = examined()
    deepeyes_patch.install(["processor", "mrope", "video"])
    try:
        for name in (processors.MODULE, "sglang.srt.managers.multimodal_processor", rope.__name__):
            imported(name)
        states = deepeyes_patch.status()
    finally:
        deepeyes_patch.uninstall()
    assert found["processor"].state == "ready"
    assert states["processor"].startswith("patched")
    assert (found["video"].state == "incompatible") == states["video"].startswith("failed")
    native = "mrope_interleaved" in inspect.signature(rope.MRotaryEmbedding).parameters
    gated = "fused kernel" in found["mrope"].detail
    assert (found["mrope"].state == "native") == (native and not gated)


def test_doctor_deep_sees_the_repairs_in_a_real_process(capsys: pytest.CaptureFixture[str]) -> None:
    processors.processor_class()
    deepeyes_patch.install(["processor"])
    try:
        deep.main()
    finally:
        deepeyes_patch.uninstall()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["error"] is None
    assert found["repairs"]["processor"].startswith("patched (")
    assert found["repairs"]["mrope"] == "off"
