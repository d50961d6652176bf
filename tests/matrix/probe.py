"""``python -m tests.matrix.probe FILE``: one release's part of the table, inside that release's environment.

Stock first, then patched, in one process: importing SGLang is most of the work. What was found is written to
FILE as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab import flags, models, processors

os.environ.update(flags.ENVIRONMENT)
# The stock forward of 0.5.3 is compiled, which takes minutes on a CPU and changes no result here.
os.environ["TORCHDYNAMO_DISABLE"] = "1"


def main(results: Path) -> None:
    cls = processors.processor_class()
    import deepeyes_patch
    from deepeyes_patch import settings
    from tests.matrix import cases
    from tests.sglang import ways

    found: dict[str, Any] = {"class": cls.__name__, "seams": seams(cls)}
    # Stock as its users have it by default; the repair must hold in every way.
    found["stock"] = state([ways.DEFAULT])
    ways.forget()  # stock requests that hang may hold a processor's workers
    deepeyes_patch.install(settings.read({settings.SWITCH: "1"}).repairs)
    found["patched"] = state(ways.ways())
    found["videos"] = {kind: cases.videos(kind) for kind in models.KINDS}
    found["status"] = deepeyes_patch.status()
    results.write_text(json.dumps(found))


def state(chosen: Sequence[str]) -> dict[str, Any]:
    """What is right now, with the processor working in some of its ways."""
    from tests.matrix import cases

    return {
        "faults": {kind: cases.faults(kind, chosen) for kind in models.KINDS},
        "grids": cases.grids_that_differ(),
        "grid_images": cases.GRID_IMAGES,
        "rope": cases.rope(),
    }


def seams(cls: type) -> dict[str, dict[str, Any]]:
    """The seams of the processor repair that are there or should be, and what is wrong with each."""
    from deepeyes_patch.seams import examine as compat
    from deepeyes_patch.seams.table import MODULE_SEAMS, ROPE_SEAMS, SEAMS

    module = sys.modules[cls.__module__]
    findings = [
        *compat.examine(cls, SEAMS),
        *compat.examine(module, MODULE_SEAMS),
        *compat.examine(module.MRotaryEmbedding, ROPE_SEAMS),
    ]
    return {
        f.seam.name: {"optional": f.seam.optional, "problem": f.problem}
        for f in findings
        if f.present or not f.seam.optional
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
