"""``python -m deepeyes_patch.cli.deep``: apply the selected repairs to the real SGLang, in this process.

A child of ``doctor --deep``; prints JSON as its last line.
"""

from __future__ import annotations

import importlib
import json
import os

from deepeyes_patch.seams import table
from deepeyes_patch.verification import harness


def main() -> None:
    report: dict[str, object] = {"repairs": {}, "cuda": None, "error": None}
    try:
        import torch

        if torch.cuda.is_available():
            report["cuda"] = torch.cuda.get_device_name(0)
        else:
            # Without this variable, SGLang treats a machine without CUDA as broken.
            os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
        import_seams()
        import deepeyes_patch

        report["repairs"] = deepeyes_patch.status()
    except Exception as error:  # the user must read any error
        report["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(report))


def import_seams() -> None:
    """Import every module of the table that this SGLang has and can import here."""
    harness.import_layers()
    for seam in table.SEAMS:
        try:
            importlib.import_module(seam.module)
        except ImportError as error:
            if not (seam.optional_module and _is_excusable(seam.module, error)):
                raise


def _is_excusable(module: str, error: ImportError) -> bool:
    """Whether this release lacks the module, or the module needs a package that is not installed.

    The gRPC server needs packages that other servers do not have. One of them is in the table itself, and
    its installed version may not fit this SGLang, which only a gRPC server notices.
    """
    if not module.startswith("sglang."):
        return True
    if not isinstance(error, ModuleNotFoundError):
        return False
    missing = error.name or ""
    is_of_another_package = missing.partition(".")[0] not in ("sglang", "deepeyes_patch")
    return is_of_another_package or f"{module}.".startswith(f"{missing}.")


if __name__ == "__main__":
    main()
