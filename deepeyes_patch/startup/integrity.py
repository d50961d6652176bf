"""Finds damaged and outdated installations while SGLang can still be stopped."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from typing import Any

import deepeyes_patch
from deepeyes_patch.errors import DeepEyesPatchError

WRAPT_MINIMUM = "1.16"

# The modules that run in SGLang's processes, by layer.
MODULES = {
    "ids": (
        *("audio", "positions", "reading", "request", "spans", "tokens", "video_blocks"),
        *("video_times",),
    ),
    "mrope": (
        *("binding", "building", "deepstack", "gated_attention", "kernel", "lanes", "on_policy"),
        *("rotation", "yarn"),
    ),
    "observe": ("counters", "outcomes", "record", "release"),
    "request": (
        *("admit", "audio", "begin", "channels", "cleanup", "combine", "disaggregation"),
        *("encoded", "features", "frames", "grids", "handover", "hashes", "item_checks", "load"),
        *("media", "media_errors", "over_grpc", "preprocessed", "prompt_logprobs"),
        *("sampling", "scope", "sessions", "unserved", "verify"),
    ),
    "seams": (
        *("examine", "facts", "families", "live", "rows", "source", "table"),
        *("table_deepstack", "table_mrope", "table_server", "wrapping"),
    ),
    "startup": ("activation", "again", "failed_start", "hooks", "installer", "integrity", "stops"),
}


def is_too_old(wrapt_version: str) -> bool:
    """Whether a version of wrapt is older than `WRAPT_MINIMUM`."""
    found, minimum = (
        tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        for version in (wrapt_version, WRAPT_MINIMUM)
    )
    return found < minimum


def require_wrapt() -> None:
    """Stop if wrapt is too old.

    Raises
    ------
    DeepEyesPatchError
        wrapt is older than 1.16.
    """
    import wrapt

    version: str = wrapt.__version__  # type: ignore[attr-defined]
    if is_too_old(version):
        raise DeepEyesPatchError(
            f"deepeyes-patch needs wrapt 1.16 or newer and found {version} ({wrapt.__file__}). "
            "Run: pip install 'wrapt>=1.16'"
        )


def require_all_modules() -> None:
    """Stop if one of our modules is missing.

    Raises
    ------
    DeepEyesPatchError
        A module was not installed, or has been removed.
    """
    folder = os.path.dirname(deepeyes_patch.__file__)
    for layer, names in MODULES.items():
        present = {module.name for module in pkgutil.iter_modules([os.path.join(folder, layer)])}
        for name in names:
            if name not in present:
                raise DeepEyesPatchError(
                    f"deepeyes_patch.{layer}.{name} is missing from the installation in {folder}. "
                    f"Install deepeyes-patch again (pip install --force-reinstall)."
                )


def load(reference: str) -> Any:
    """Our function that a row of the table names as ``module:function``.

    Raises
    ------
    DeepEyesPatchError, RuntimeError
        The module is gone, or another version has been installed meanwhile.
    """
    from deepeyes_patch import bootstrap  # not at the top: `doctor` must report a missing bootstrap

    module_name, _, function = reference.partition(":")
    module_name = f"deepeyes_patch.{module_name}"
    if module_name not in sys.modules:
        bootstrap.require_same_version()
    try:
        return getattr(importlib.import_module(module_name), function)
    except ImportError as error:
        if not (error.name or "").startswith("deepeyes_patch"):  # torch, for example
            raise
        raise DeepEyesPatchError(bootstrap.UNLOADABLE.format(error=error)) from error
