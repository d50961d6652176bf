"""Run-time repairs for Qwen-VL serving in SGLang.

This module imports only ``os`` and ``sys``, not even ``__future__``. If a switch is set,
``deepeyes_patch.pth`` calls `start` in every Python process of the environment, also in processes that never
import SGLang.

Public names
------------
install(repairs=None)
    Switch the repairs on in this process and in the children it starts from now on.
uninstall()
    Put every original back in this process.
status()
    What is patched, native or waiting in this process.
DeepEyesPatchError, SettingsError, IncompatibleSGLangError
    What the package raises at start-up.
InternalError
    A fault of this package while it handled a request.
RefusedRequest
    A ``ValueError`` for a request that cannot be served exactly; its ``reason`` is one of a closed list.

Layers
------
Imports go downwards only, in this order (``python -m tests.graph`` draws them):
``cli`` and ``verification``, ``startup``, ``request`` and ``mrope``, ``seams``, ``observe`` and ``ids``,
and last ``settings``, ``errors`` and ``bootstrap``. Each layer says in its docstring what its modules do.
"""

import os
import sys

TYPE_CHECKING = False  # importing `typing` would double the start-up cost of this package
if TYPE_CHECKING:
    from typing import Any

    from deepeyes_patch.errors import (
        DeepEyesPatchError,
        IncompatibleSGLangError,
        InternalError,
        RefusedRequest,
        SettingsError,
    )
    from deepeyes_patch.observe.outcomes import status
    from deepeyes_patch.startup.installer import install, uninstall

__version__ = "0.1.0"

__all__ = [
    "DeepEyesPatchError",
    "IncompatibleSGLangError",
    "InternalError",
    "RefusedRequest",
    "SettingsError",
    "install",
    "status",
    "uninstall",
]

OFF_VALUES = ("", "0", "false", "off")

_HOMES = {
    "DeepEyesPatchError": "errors",
    "IncompatibleSGLangError": "errors",
    "InternalError": "errors",
    "RefusedRequest": "errors",
    "SettingsError": "errors",
    "install": "startup.installer",
    "status": "observe.outcomes",
    "uninstall": "startup.installer",
}


def start() -> None:
    """Entry point of ``deepeyes_patch.pth`` and ``deepeyes_patch.start``.

    Does nothing unless a switch is on; then it leaves one finder on ``sys.meta_path`` that waits for
    the first import of ``sglang``. Never raises and never prints: an interpreter that does not
    import SGLang must not notice that our installation is broken.
    """
    # The .pth line knows the value ``off`` alone. Python 3.15 reads the .start file instead, which checks
    # nothing. So the value is checked here.
    value = os.environ.get("DEEPEYES_PATCH") or os.environ.get("RELAX_DEEPEYES_QWEN_VL_PATCH") or ""
    if value.strip().lower() in OFF_VALUES:
        return
    try:
        from deepeyes_patch.bootstrap import watch_for_sglang
    except Exception as error:  # half removed or half written
        sys.meta_path.insert(0, _BrokenInstallation(error))
    else:
        watch_for_sglang()


class _BrokenInstallation:
    """Meta-path finder that replaces the one in ``bootstrap``, if ``bootstrap`` cannot be loaded."""

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Stop SGLang; otherwise it would run unrepaired without any message."""
        if fullname == "sglang":
            raise RuntimeError(
                f"deepeyes-patch is switched on and cannot be loaded: {self._reason}. Install it "
                f"again (pip install --force-reinstall), or set DEEPEYES_PATCH=off."
            )


def __getattr__(name: str) -> "Any":
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"deepeyes_patch.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
