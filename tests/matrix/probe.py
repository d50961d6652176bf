"""``python -m tests.matrix.probe FILE``: one release's part of the table, inside that release's environment.

Stock or patched, as the environment variable says: the repairs come in as a user gets them, through the
``.pth`` file of the installed wheel. What was found is written to FILE as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.lab import flags, models, processors

os.environ.update(flags.ENVIRONMENT)
# The stock forward of 0.5.3 is compiled, which takes minutes on a CPU and changes no result here.
os.environ["TORCHDYNAMO_DISABLE"] = "1"


def main(results: Path) -> None:
    cls = processors.processor_class()
    import deepeyes_patch
    from tests.matrix import cases
    from tests.sglang import ways

    patched = deepeyes_patch.status()["processor"] != "off"
    # Stock is what its users have by default; the repair must hold in every way.
    chosen = ways.ways() if patched else [ways.DEFAULT]
    found: dict[str, Any] = {
        "class": cls.__name__,
        "seams": seams(cls),
        "faults": {kind: cases.faults(kind, chosen) for kind in models.KINDS},
        "grids": cases.grids_that_differ(),
        "grid_images": cases.GRID_IMAGES,
        "rope": cases.rope(),
        "status": deepeyes_patch.status(),
        "package": deepeyes_patch.__file__,
    }
    results.write_text(json.dumps(found))


def seams(cls: type) -> dict[str, dict[str, Any]]:
    """The seams of the processor repair that are there or should be, and what is wrong with each."""
    from deepeyes_patch import compat, processor

    module = sys.modules[cls.__module__]
    findings = [
        *compat.examine(cls, processor.SEAMS),
        *compat.examine(module, processor.MODULE_SEAMS),
        *compat.examine(module.MRotaryEmbedding, processor.ROPE_SEAMS),
    ]
    return {
        f.seam.name: {"optional": f.seam.optional, "problem": f.problem}
        for f in findings
        if f.present or not f.seam.optional
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
