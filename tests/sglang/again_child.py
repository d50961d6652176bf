"""A child process that imports this release's SGLang, takes it out of ``sys.modules``, and imports it again.

``python -m tests.sglang.again_child FILE``. What it finds is written as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.lab import flags

os.environ.update(flags.ENVIRONMENT)
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import deepeyes_patch
from deepeyes_patch.seams.wrapping import SeamWrapper
from tests.lab import models, processors
from tests.sglang import rollouts

ROTARY = "sglang.srt.layers.rotary_embedding"
FACTORY = "sglang.srt.managers.multimodal_processor"


def found() -> dict[str, Any]:
    """What carries a wrapper of ours in the modules that are loaded now."""
    cls = processors.processor_class()
    return {
        "processor": isinstance(vars(cls).get("process_mm_data_async"), SeamWrapper),
        "factory": isinstance(importlib.import_module(FACTORY).get_mm_processor, SeamWrapper),
        "rope": isinstance(importlib.import_module(ROTARY).get_rope, SeamWrapper),
        "says": deepeyes_patch.status()["processor"].partition(" ")[0],
    }


def main(file: Path) -> None:
    deepeyes_patch.install(["processor", "mrope"])
    answer: dict[str, Any] = {"first": found()}
    old = processors.processor_class()
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]
    answer["again"] = found()
    answer["another class"] = processors.processor_class() is not old
    folder = models.ensure("qwen3_vl")
    request = rollouts.expanded(folder, [rollouts.picture(448, 224)])
    result = rollouts.attempt(processors.build("qwen3_vl"), request)
    rollouts.assert_exact(folder, result, request)
    importlib.reload(sys.modules[FACTORY])
    answer["reloaded"] = found()
    deepeyes_patch.uninstall()
    answer["uninstalled"] = found()
    file.write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
