"""Ray actors: the switch in ``runtime_env`` repairs that actor, and no other process."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.e2e import interpreters, shapes
from tests.lab import children, environments, flags

SECONDS = 540


def test_the_switch_of_one_actor(tmp_path: Path) -> None:
    layers = [environments.ray_layer(), *interpreters.layers()]
    python = interpreters.build(tmp_path / "venv", layers, with_our_package=True)
    log = tmp_path / "log"
    env = {
        **shapes.STOCK,
        **flags.ENVIRONMENT,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(environments.CHECKOUT),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    children.run([python, "-m", "tests.e2e.rayed"], log, SECONDS, env, quiet=True)
    (line,) = [line for line in log.read_text().splitlines() if line.startswith('{"off"')]
    told = json.loads(line)
    assert told["off"]["state"] == "off"
    assert told["off"]["outcome"] in ("AssertionError", "IndexError"), "stock fails on such ids"
    assert re.fullmatch(r"patched \(Qwen\w*VL\w+\)", told["on"]["state"])
    assert told["on"]["outcome"] == "exact"
    assert set(told["driver"].values()) == {"off"}
