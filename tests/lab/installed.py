"""What of a package is installed, told by its files: nothing is imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def sources(module: str) -> list[Path]:
    """The Python files of a module or package (``sglang.srt.models.qwen3_vl``); [] if there is none."""
    top, *parts = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None and top != "sglang":
        return []
    assert spec is not None, f"{top} is not installed"
    assert spec.submodule_search_locations, f"{top} is no package"
    place = Path(spec.submodule_search_locations[0], *parts)
    alone = place.with_suffix(".py")
    return [alone] if alone.exists() else sorted(place.glob("*.py"))


def has_module(module: str) -> bool:
    """Whether a module or package below an installed top-level package is there."""
    return bool(sources(module))
