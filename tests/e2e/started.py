"""``python -m tests.e2e.started SCENE``: children of multiprocessing that hold the real processor.

Each process that reports prints one line of JSON: who it is, what the processor repair is there, and what
became of a request with expanded, non-canonical ids.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from typing import Any

import deepeyes_patch

JOIN_SECONDS = 240


def report() -> dict[str, Any]:
    """State and outcome in this process; an answer that is not exact is an error."""
    import torch

    from tests.e2e.shapes import PICTURES
    from tests.lab import models, processors
    from tests.sglang import rollouts

    torch.set_num_threads(1)
    folder = models.ensure("qwen3_vl")
    request = rollouts.drifted(folder, rollouts.expanded(folder, PICTURES[:2]), "between")
    processor = processors.build(folder)
    state = deepeyes_patch.status()["processor"]
    try:
        result = processors.process(processor, list(request.ids), request.images)
    except Exception as error:
        return {"state": state, "outcome": type(error).__name__}
    rollouts.assert_exact(folder, result, request)
    return {"state": state, "outcome": "exact"}


def say(who: str, told: dict[str, Any] | None = None) -> None:
    print(json.dumps({"who": who, **(told or report())}), flush=True)


def start(method: str) -> None:
    """One child, started in this way; says how it ended if that was not well."""
    process = multiprocessing.get_context(method).Process(target=say, args=(method,))
    try:
        process.start()
        process.join(JOIN_SECONDS)
    except OSError:  # the server that forks others was stopped itself
        say(method, {"ended": "stopped"})
        return
    if process.exitcode != 0:
        process.kill()
        say(method, {"ended": process.exitcode})


def import_sglang() -> None:
    from tests.lab import processors

    processors.processor_class()


def main(scene: str) -> None:
    if scene == "parent first":
        import_sglang()
        for method in ("fork", "spawn", "forkserver"):
            start(method)
        say("parent")
    elif scene == "children first":
        start("fork")
        assert "sglang" not in sys.modules
    elif scene == "too late":
        os.environ["DEEPEYES_PATCH"] = "1"
        import_sglang()
        for method in ("fork", "spawn", "forkserver"):
            start(method)
        deepeyes_patch.install()
        say("parent, installed")
        for method in ("fork", "spawn"):
            start(method)


if __name__ == "__main__":
    main(sys.argv[1])
