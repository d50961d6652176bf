"""``python -m tests.e2e.rayed``: the real processor in two Ray actors, with the switch and without.

The switch is in one actor's ``runtime_env`` alone. Prints, as JSON, what each reports, and what
the driver is.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import ray

import deepeyes_patch
from tests.e2e import started

SECONDS = 240


class Holder:
    """An actor as a trainer has it, with an engine's processor in it."""

    def report(self) -> dict[str, Any]:
        return started.report()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, _temp_dir=folder)
        actor = ray.remote(Holder)
        told = {}
        try:
            for name, variables in {"off": {}, "on": {"DEEPEYES_PATCH": "1"}}.items():
                holder = actor.options(runtime_env={"env_vars": variables}).remote()
                told[name] = ray.get(holder.report.remote(), timeout=SECONDS)
                ray.kill(holder)
        finally:
            ray.shutdown()
    assert "sglang" not in sys.modules
    print(json.dumps({**told, "driver": deepeyes_patch.status()}), flush=True)


if __name__ == "__main__":
    main()
