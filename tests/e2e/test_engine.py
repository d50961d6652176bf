"""``sglang.Engine`` in the caller's own process, as trainers hold it; no HTTP."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import engined, shapes
from tests.lab import children, client, flags, server

SECONDS = 480


def asked(env: dict[str, str | None], log: Path, ways: list[str]) -> dict[str, dict[str, Any]]:
    """What became of each way, in an Engine of its own."""
    variables = {**env, **flags.ENVIRONMENT, **server.QUICK}
    children.run([sys.executable, "-m", "tests.e2e.engined", *ways], log, SECONDS, variables, quiet=True)
    told = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"way"')]
    assert [one["way"] for one in told] == ways
    return {one["way"]: one for one in told}


@pytest.fixture(scope="module")
def patched_engine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return asked(shapes.PATCHED, tmp_path_factory.mktemp("engine") / "log", engined.WAYS)


@pytest.mark.parametrize("way", engined.WAYS[:-1])
def test_patched_is_exact(way: str, folder: Path, patched_engine: dict[str, dict[str, Any]]) -> None:
    told = patched_engine[way]
    assert "answer" in told, told
    verdict = shapes.judge(folder, engined.sent(folder), client.read(200, told["answer"]))
    assert verdict.exact, verdict


def test_a_bad_request_raises_in_the_caller(patched_engine: dict[str, dict[str, Any]]) -> None:
    told = patched_engine["refused"]
    assert told.get("error") == "RefusedRequest", told
    assert "ValueError" in told["is_a"], "what callers of an Engine catch"
    assert "hold 2 image span" in told["message"]


def test_stock_raises_what_its_code_runs_into(tmp_path: Path) -> None:
    told = asked(shapes.STOCK, tmp_path / "log", ["generate, PIL"])["generate, PIL"]
    assert told.get("error") in ("AssertionError", "IndexError"), told
