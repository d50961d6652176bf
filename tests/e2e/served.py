"""``python -m tests.e2e.served``: is the SGLang on this interpreter's path served exactly?

For altered copies, which need an interpreter of their own: the real processor class in this process, both
tiny models. Ends with an error unless every result is what the caller's ids demand; prints, as JSON, which
SGLang it was.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import deepeyes_patch
from tests.e2e.shapes import PICTURES
from tests.lab import models, processors
from tests.sglang import rollouts
from tests.sglang.rollouts import Request


def requests(folder: Path) -> list[Request]:
    short, expanded = (make(folder, PICTURES[:2]) for make in (rollouts.short, rollouts.expanded))
    return [
        short,
        expanded,
        *(rollouts.drifted(folder, expanded, where) for where in ("before", "between", "after")),
        rollouts.drifted(folder, short, "between"),
        rollouts.mixed(folder, PICTURES[:3], {2}),
    ]


def main() -> None:
    served = 0
    for kind in models.KINDS:
        folder = models.ensure(kind)
        processor = processors.build(kind)
        for request in requests(folder):
            result = processors.process(processor, list(request.ids), request.images)
            rollouts.assert_exact(folder, result, request)
            served += 1
    import sglang

    found = {
        "version": sglang.__version__,
        "distributions": metadata.packages_distributions().get("sglang"),
        "processor": sys.modules[processors.MODULE].__file__,
        "package": deepeyes_patch.__file__,
        "state": deepeyes_patch.status()["processor"],
        "served": served,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
