"""fork, spawn and forkserver: the real processor in the child, by when the switch was set.

The made-up SGLang of tests/unit/test_bootstrap.py tries more orders; this shows that the real one is exact in
the child, refused, or stock, and never repaired in one process of two.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import shapes
from tests.lab import children, flags

SECONDS = 480


def scene(name: str, env: dict[str, str | None], log: Path) -> tuple[list[dict[str, Any]], str]:
    """(what each process reported, the whole log)."""
    variables = {**env, **flags.ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.e2e.started", name]
    children.run(command, log, SECONDS, variables, quiet=True)
    text = log.read_text()
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"who"')], text


def is_exact(told: dict[str, Any]) -> bool:
    return bool(re.fullmatch(r"patched \(Qwen\w*VL\w+\)", told["state"])) and told["outcome"] == "exact"


def test_the_switch_is_set_and_the_parent_imports_sglang_first(tmp_path: Path) -> None:
    told, _ = scene("parent first", shapes.PATCHED, tmp_path / "log")
    assert [one["who"] for one in told] == ["fork", "spawn", "forkserver", "parent"]
    assert all(is_exact(one) for one in told), told


def test_the_switch_is_set_and_the_child_imports_sglang_first(tmp_path: Path) -> None:
    told, _ = scene("children first", shapes.PATCHED, tmp_path / "log")
    assert [one["who"] for one in told] == ["fork"]
    assert is_exact(told[0]), told


@pytest.fixture(scope="module")
def too_late(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    return scene("too late", shapes.STOCK, tmp_path_factory.mktemp("late") / "log")


def test_a_switch_set_after_the_start_leaves_stock_or_refuses(
    too_late: tuple[list[dict[str, Any]], str],
) -> None:
    told, log = too_late
    forked, spawned, served = told[:3]
    # A forked child is its parent's likeness: stock, which fails on such ids.
    assert forked["who"] == "fork"
    assert forked["state"] == "off"
    assert forked["outcome"] in ("AssertionError", "IndexError"), forked
    # New interpreters would be repaired beside a stock parent, so they import no SGLang.
    assert spawned == {"who": "spawn", "ended": 1}
    assert served["who"] == "forkserver"
    assert served["ended"] in (1, 255, "stopped")
    refusal = "SettingsError: DEEPEYES_PATCH was set after the parent of this process had started"
    assert log.count(refusal) == 2, log
    assert "deepeyes_patch.install()" in log


def test_an_explicit_install_then_repairs_the_parent_and_its_children(
    too_late: tuple[list[dict[str, Any]], str],
) -> None:
    told, _ = too_late
    installed = told[3:]
    assert [one["who"] for one in installed] == ["parent, installed", "fork", "spawn"]
    assert all(is_exact(one) for one in installed), installed
