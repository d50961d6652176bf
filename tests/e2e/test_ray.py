"""Ray actors: the switch in ``runtime_env`` repairs that actor alone; a start that is stopped is heard."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.e2e import interpreters, shapes
from tests.lab import children, environments, flags

SECONDS = 540


def run(folder: Path, mark: str, *arguments: str) -> dict[str, Any]:
    """The line of JSON that ``tests.e2e.rayed`` prints, which begins with ``mark``."""
    layers = [environments.ray_layer(), *interpreters.layers()]
    python = interpreters.build(folder / "venv", layers, with_our_package=True)
    log = folder / "log"
    env = {
        **shapes.STOCK,
        **flags.ENVIRONMENT,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(environments.CHECKOUT),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    children.run([python, "-m", "tests.e2e.rayed", *arguments], log, SECONDS, env, quiet=True)
    (line,) = [line for line in log.read_text().splitlines() if line.startswith(f'{{"{mark}"')]
    told: dict[str, Any] = json.loads(line)
    return told


def test_the_switch_of_one_actor(tmp_path: Path) -> None:
    told = run(tmp_path, "off")
    assert told["off"]["state"] == "off"
    assert told["off"]["outcome"] in ("AssertionError", "IndexError"), "stock fails on such ids"
    assert re.fullmatch(r"patched \(Qwen\w*VL\w+\)", told["on"]["state"])
    assert told["on"]["outcome"] == "exact"
    assert set(told["driver"].values()) == {"off"}


def test_a_start_that_is_stopped_in_an_actor(tmp_path: Path, renamed_seam: Path) -> None:
    """The driver gets the error, and nothing is left once the actor is gone."""
    told = run(tmp_path, "error", str(renamed_seam))
    assert "deepeyes-patch cannot apply its 'processor' repair" in told["error"]
    assert told["left"] == 0
