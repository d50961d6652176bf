"""What ``doctor`` reads in this release's source is what the repairs find in its imported modules."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import deepeyes_patch
from deepeyes_patch.cli import deep, repairs
from deepeyes_patch.seams import examine as compat
from deepeyes_patch.seams import table as seams
from tests.lab import processors


def examined() -> dict[str, repairs.Repair]:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    return repairs.examine(Path(next(iter(spec.submodule_search_locations))), {"processor", "mrope", "video"})


def imported(name: str) -> Any:
    return importlib.import_module(name)


def told(findings: list[compat.Finding]) -> list[tuple[str, bool, str | None]]:
    return [(f.seam.name, f.present, f.problem) for f in findings]


def test_the_seams_are_those_of_the_imported_modules() -> None:
    cls = processors.processor_class()
    module = imported(processors.MODULE)
    rope = imported("sglang.srt.layers.rotary_embedding")
    manager = imported("sglang.srt.managers.tokenizer_manager").TokenizerManager
    by_owner: dict[str, list[compat.Finding]] = {}
    for repair in examined().values():
        for owner, finding in repair.seams:
            by_owner.setdefault(owner, []).append(finding)
    expected = {
        cls.__name__: compat.examine(cls, seams.processor_seams(hasattr(cls, "compose_image_artifacts"))),
        "multimodal_processor": compat.examine(
            imported("sglang.srt.managers.multimodal_processor"), seams.FACTORY
        ),
        "TokenizerManager": compat.examine(manager, seams.INTAKE),
        "rotary_embedding": compat.examine(rope, seams.GET_ROPE),
    }
    for name in ("encode_receiver", "encoder.receiver"):
        with contextlib.suppress(ModuleNotFoundError):
            receiver = imported(f"sglang.srt.disaggregation.{name}")
            for wanted in (seams.WAITING, seams.RECEIVER):
                for owner, own in vars(receiver).items():
                    if isinstance(own, type) and wanted[0].name in vars(own):
                        expected[owner] = compat.examine(own, wanted)
    for owner, findings in expected.items():
        assert told(by_owner[owner]) == told(findings), owner
    assert told(by_owner["qwen_vl"])[: len(seams.MODULE_SEAMS)] == told(
        compat.examine(module, seams.MODULE_SEAMS)
    )
    assert told(by_owner["MRotaryEmbedding"])[:1] == told(
        compat.examine(module.MRotaryEmbedding, seams.ROPE_SEAMS)
    )


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
