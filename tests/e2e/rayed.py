"""Ray actors: ``python -m tests.e2e.rayed``, and ``python -m tests.e2e.rayed FOLDER``.

Without an argument: the real processor in two actors, with the switch and without. The switch is in one
actor's ``runtime_env`` alone. Prints, as JSON, what each reports, and what the driver is.

FOLDER holds an altered SGLang, on which a patched start is stopped. An actor starts an ``Engine`` on it, and
ends. Prints, as JSON, the error that reaches the driver, and how many of the actor's children are left.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import psutil
import ray

import deepeyes_patch
from tests.e2e import failing, started

SECONDS = 240
END_SECONDS = 30  # of an actor's children, once the actor is gone


class Holder:
    """An actor as a trainer has it, with an engine's processor in it."""

    def report(self) -> dict[str, Any]:
        return started.report()

    def start(self) -> None:
        failing.launch("engine")

    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process().children(recursive=True)]


@contextlib.contextmanager
def ray_here() -> Iterator[Any]:
    """A Ray of one core in this process: the class of its actors."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, _temp_dir=folder)
        try:
            yield ray.remote(Holder)
        finally:
            ray.shutdown()


def report() -> None:
    told = {}
    with ray_here() as actor:
        for name, variables in {"off": {}, "on": {"DEEPEYES_PATCH": "1"}}.items():
            holder = actor.options(runtime_env={"env_vars": variables}).remote()
            told[name] = ray.get(holder.report.remote(), timeout=SECONDS)
            ray.kill(holder)
    assert "sglang" not in sys.modules
    print(json.dumps({**told, "driver": deepeyes_patch.status()}), flush=True)


def fail(folder: str) -> None:
    path = os.pathsep.join([folder, os.environ["PYTHONPATH"]])
    variables = {"DEEPEYES_PATCH": "1", "PYTHONPATH": path}
    with ray_here() as actor:
        holder = actor.options(runtime_env={"env_vars": variables}).remote()
        begin = time.monotonic()
        try:
            ray.get(holder.start.remote(), timeout=SECONDS)
            error = ""
        except Exception as raised:
            error = str(raised)
        seconds = time.monotonic() - begin
        family = [psutil.Process(pid) for pid in ray.get(holder.children.remote(), timeout=SECONDS)]
        ray.kill(holder)
        _, left = psutil.wait_procs(family, timeout=END_SECONDS)
    print(json.dumps({"error": error, "seconds": seconds, "left": len(left)}), flush=True)


if __name__ == "__main__":
    fail(sys.argv[1]) if len(sys.argv) > 1 else report()
