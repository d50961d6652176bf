"""The ways in which a release's processor can work, and a processor for each.

``retokenize``: with SGLANG_MM_AVOID_RETOKENIZE=0 (0.5.13 and later), whose default would hide a repair that
does nothing. ``pool``: worker threads with processor clones (0.5.17 and later).
"""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import Any

from tests.lab import models, processors

DEFAULT = "default"
_AVOID = "SGLANG_MM_AVOID_RETOKENIZE"


def ways() -> list[str]:
    """Those that this release knows, the default first."""
    found = [DEFAULT]
    found += ["retokenize"] if avoids_retokenizing() else []
    found += ["pool", "pool, retokenize"] if _has_pool() else []
    return found


def build(kind_or_folder: models.Kind | Path, way: str = DEFAULT, cls: type | None = None) -> Any:
    """The release's own processor, of the Qwen module's class if none is named; kept for the process."""
    folder = kind_or_folder if isinstance(kind_or_folder, Path) else models.ensure(kind_or_folder)
    return _built(folder, 2 if "pool" in way else 1, cls)


def forget() -> None:
    """Let `build` make new ones."""
    _built.cache_clear()


def variables(way: str) -> dict[str, str]:
    """What the environment must hold while the processor works; SGLang reads it with every request."""
    return {_AVOID: "0"} if "retokenize" in way else {}


@cache
def _built(folder: Path, workers: int, cls: type | None) -> Any:
    return processors.build(folder, cls, **({"mm_processor_worker_num": workers} if _has_pool() else {}))


def _has_pool() -> bool:
    from sglang.srt.server_args import ServerArgs

    return "mm_processor_worker_num" in inspect.signature(ServerArgs).parameters


def avoids_retokenizing() -> bool:
    from sglang.srt import environ

    return hasattr(environ.envs, _AVOID)
