"""A start that we stop ends and says why, whatever started SGLang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import shapes
from tests.lab import altered
from tests.lab.altered import replacing
from tests.lab.environments import CHECKOUT

BASE = "srt/multimodal/processors/base_processor.py"
CHILD_SECONDS = 300


@pytest.fixture(scope="module")
def renamed_seam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    edit = replacing("_process_and_collect_mm_items", "_collect_mm_items")
    return altered.copy(tmp_path_factory.mktemp("renamed-seam"), {BASE: edit})


def start(way: str, path: Path) -> tuple[dict[str, Any], str]:
    """How a start in this way ended, and the log."""
    env = {**os.environ, **shapes.PATCHED, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.failing", way],
        env={name: value for name, value in env.items() if value is not None},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
    )
    log = done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"code"')]
    assert lines, log[-3000:]
    found: dict[str, Any] = json.loads(lines[-1])
    return found, log


@pytest.mark.parametrize("way", ["spawn", "fork", "engine"])
def test_the_child_ends_and_says_why(way: str, renamed_seam: Path) -> None:
    found, log = start(way, renamed_seam)
    assert found["code"] not in (None, 0), log[-3000:]
    assert found["left"] == 0
    assert "deepeyes-patch cannot apply its 'processor' repair" in log
    assert "Traceback (most recent call last)" in log
