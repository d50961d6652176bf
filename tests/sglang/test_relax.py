"""Beside Relax's own patch of the same method, with a stand-in that follows its protocol.

Relax's engine runs in a Ray actor. It sets its variable there, and spawns the server, which replaces the
method unless the class carries a mark. Here a Python process is the actor, and its spawned child the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import deepeyes_patch
from deepeyes_patch.settings import RELAX_FLAG, RELAX_MARK, RELAX_SWITCH, SWITCH
from tests.lab import models, processors
from tests.lab.environments import CHECKOUT

CHILD_SECONDS = 300

PATCH = f"""
from deepeyes_patch.verification import harness

def apply():
    cls = harness.processor_class()
    if getattr(cls, {RELAX_MARK!r}, False):
        return "already applied, skip"
    async def process_mm_data_async(self, *args, **kwargs):
        return "Relax's"
    cls.process_mm_data_async = process_mm_data_async
    setattr(cls, {RELAX_MARK!r}, True)
    return "applied"
"""

ACTOR = f"""
import json, multiprocessing, os, sys

def serve(results, deeper):
    from tests.lab import processors
    from relax.backends.sglang.patches import qwen_vl_patch
    import deepeyes_patch
    said = qwen_vl_patch.apply()
    cls = processors.processor_class()
    try:
        processors.build("qwen3_vl")
        built = ""
    except Exception as error:
        built = str(error)
    found = {{"said": said, "status": deepeyes_patch.status()["processor"], "built": built,
             "method": cls.process_mm_data_async.__module__}}
    open(results + "." * deeper, "w").write(json.dumps(found))
    if not deeper:  # as the server starts the scheduler
        start(results, 1)

def start(results, deeper):
    child = multiprocessing.get_context("spawn").Process(target=serve, args=(results, deeper))
    child.start()
    child.join()
    assert child.exitcode == 0, child.exitcode

if __name__ == "__main__":
    os.environ[{RELAX_SWITCH!r}] = "1"
    start(sys.argv[1], 0)
"""


@pytest.fixture
def relax(tmp_path: Path) -> Path:
    """A folder for the path of an interpreter, with the stand-in."""
    package = tmp_path / "relax" / "backends" / "sglang" / "patches"
    package.mkdir(parents=True)
    (package / "qwen_vl_patch.py").write_text(PATCH)
    (tmp_path / "actor.py").write_text(ACTOR)
    return tmp_path


def run(relax: Path, switch: str | None) -> tuple[list[dict[str, Any]], str]:
    """What the server and its own child found, and the log."""
    env = {name: value for name, value in os.environ.items() if name not in (SWITCH, RELAX_SWITCH)}
    env |= {"PYTHONPATH": f"{relax}:{CHECKOUT}", "OMP_NUM_THREADS": "1"}
    env.pop("_DEEPEYES_PATCH_WATCHING", None)
    if switch is not None:
        env[SWITCH] = switch
    models.ensure("qwen3_vl")
    done = subprocess.run(
        [sys.executable, str(relax / "actor.py"), str(relax / "found")],
        env=env,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads((relax / name).read_text()) for name in ("found", "found.")]
    return found, done.stderr


def test_with_no_variable_of_ours_relax_serves(relax: Path) -> None:
    found, log = run(relax, None)
    for one in found:
        assert one["said"] == "applied"
        assert one["method"] == "relax.backends.sglang.patches.qwen_vl_patch"
        assert one["status"] == "off"
        assert one["built"] == ""
    assert log.count("deepeyes-patch is off in process") == len(found)
    assert RELAX_SWITCH in log


def test_with_ours_on_relax_stands_aside(relax: Path) -> None:
    found, log = run(relax, "1")
    for one in found:
        assert one["said"] == "already applied, skip"
        assert one["status"].startswith("patched")
        assert one["built"] == ""
        assert one["method"].startswith("sglang.")
    assert "deepeyes-patch is off" not in log


def test_where_relax_came_first_the_flag_to_drop_is_named(
    relax: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = processors.processor_class()
    monkeypatch.syspath_prepend(str(relax))
    monkeypatch.setattr(cls, "process_mm_data_async", cls.process_mm_data_async)  # puts it back at the end
    monkeypatch.setattr(cls, RELAX_MARK, False, raising=False)
    patch = __import__("relax.backends.sglang.patches.qwen_vl_patch", fromlist=["apply"])
    assert patch.apply() == "applied"
    deepeyes_patch.install(["processor"])
    try:
        with pytest.raises(deepeyes_patch.IncompatibleSGLangError) as raised:
            processors.build("qwen3_vl")
    finally:
        deepeyes_patch.uninstall()
    assert f"drop its flag {RELAX_FLAG}" in str(raised.value)
    assert getattr(cls, RELAX_MARK) is True, "Relax's mark is Relax's"


def test_the_mark_goes_with_the_repair(patched: None) -> None:
    cls = processors.processor_class()
    assert vars(cls)[RELAX_MARK] is True
    deepeyes_patch.uninstall()
    assert RELAX_MARK not in vars(cls)
