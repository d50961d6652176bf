"""``python -m tests.matrix.probe FILE``: one release's part of the table, inside that release's environment.

Stock first, then patched, in one process: importing SGLang is most of the work. The results are written to
FILE as JSON.
"""

from __future__ import annotations

import importlib.util
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


def main(file: Path) -> None:
    cls = processors.processor_class()
    import deepeyes_patch
    from deepeyes_patch import settings
    from tests.matrix import cases
    from tests.sglang import ways

    results: dict[str, Any] = {"class": cls.__name__, "seams": seams()}
    # Stock as its users have it by default; the repair must hold in every way.
    results["stock"] = state([ways.DEFAULT])
    ways.forget()  # stock requests that hang may hold a processor's workers
    deepeyes_patch.install(settings.read({settings.SWITCH: "1"}).repairs)
    results["patched"] = state(ways.ways())
    results["videos"] = {kind: cases.videos(kind) for kind in models.KINDS}
    results["status"] = deepeyes_patch.status()
    file.write_text(json.dumps(results))


def state(chosen: Sequence[str]) -> dict[str, Any]:
    """What is right now, with the processor working in some of its ways."""
    from tests.matrix import cases

    return {
        "faults": {kind: cases.faults(kind, chosen) for kind in models.KINDS},
        "grids": cases.grids_that_differ(),
        "grid_images": cases.GRID_IMAGES,
        "rope": cases.rope(),
    }


def seams() -> list[dict[str, Any]]:
    """For each row of the table of seams: the number of usable functions, and the problems with others.

    ``source``: in SGLang's files, as ``doctor`` looks. ``imported``: in the imported modules, as the hooks
    look; ``None`` where the module needs a package that is not installed, or imports a kernel on CUDA only.
    """
    from deepeyes_patch.cli import deep
    from deepeyes_patch.seams import table
    from deepeyes_patch.seams.live import LiveView
    from deepeyes_patch.seams.source import SourceView

    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    source, live = SourceView(Path(spec.submodule_search_locations[0])), LiveView()
    deep.import_seams()
    rows = []
    for seam in table.SEAMS:
        in_source, imported = source.module(seam.module), live.module(seam.module)
        comparable = (in_source is None) == (imported is None) and (
            imported is None or seam.applies(live, imported) == seam.applies(source, in_source)
        )
        rows.append(
            {
                "repair": seam.repair,
                "name": f"{seam.module}: {seam}",
                "releases": seam.releases,
                "source": judged(source, seam),
                "imported": judged(live, seam) if comparable else None,
            }
        )
    return rows


def judged(view: Any, seam: Any) -> dict[str, Any]:
    from deepeyes_patch.seams.examine import examine

    findings = examine(view, [seam])
    return {
        "usable": sum(finding.present and finding.problem is None for finding in findings),
        "problems": [str(finding.problem) for finding in findings if finding.problem is not None],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
