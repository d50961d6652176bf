"""``python -m deepeyes_patch.cli.deep``: apply the selected repairs to the real SGLang, in this process.

A child of ``doctor --deep``; prints JSON as its last line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os

from deepeyes_patch.seams import table

# Before the modules of the table, because a server imports it first: 0.5.3's processors run into a circular
# import otherwise.
_FIRST = "sglang.srt.layers.quantization"


def main() -> None:
    import torch

    found: dict[str, object] = {"repairs": {}, "cuda": None, "error": None}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_device_name(0)
    else:
        # SGLang otherwise takes a machine without CUDA for one that is broken.
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    try:
        importlib.import_module(_FIRST)
        for seam in table.SEAMS:
            # A module may need a package that only some servers have (gRPC).
            with contextlib.suppress(ImportError) if seam.optional_module else contextlib.nullcontext():
                importlib.import_module(seam.module)
        import deepeyes_patch

        found["repairs"] = deepeyes_patch.status()
    except Exception as error:  # whatever it is, the user must read it
        found["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
