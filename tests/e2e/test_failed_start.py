"""A start that we stop ends and says why, whatever started SGLang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import shapes


def start(way: str, path: Path) -> tuple[dict[str, Any], str]:
    """How a start in this way ended, and the log."""
    done = shapes.run_on(path, "tests.e2e.failing", way)
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
