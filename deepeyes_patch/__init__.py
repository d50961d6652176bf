"""Run-time repairs for Qwen-VL serving in SGLang.

If a switch is on, ``deepeyes_patch.pth`` calls `start` in every Python process of the environment (pip,
ninja, compile workers, reward judges), and most of them never import SGLang. Such a process loads this module
and no other of ours: a second one would add 1% to its instructions. This module imports only what Python has
loaded already, not even ``__future__``.

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

import _thread
import os
import sys

TYPE_CHECKING = False  # importing `typing` would double the start-up cost of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
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

    Question = tuple[str, object, object]  # what a finder is asked: name, path, target
    Pending = set[tuple[int, str]]  # thread and name
    Step = Callable[[ModuleType], None]

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

# Tells a child process: its parent had our finder, or had called `install`, when it started the child.
WATCHING = "_DEEPEYES_PATCH_WATCHING"
PARENT_WAS_WATCHING = WATCHING in os.environ

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

    Does nothing unless a switch is on; then it leaves `finder` on ``sys.meta_path``, which waits for the
    first import of ``sglang``. Never raises and never prints: an interpreter that does not import SGLang must
    not notice that our installation is broken. A second call changes nothing: a ``.pth`` file really is
    processed twice in some virtual environments.
    """
    # The .pth line knows the value ``off`` alone. Python 3.15 reads the .start file instead, which checks
    # nothing. So the value is checked here.
    value = os.environ.get("DEEPEYES_PATCH") or os.environ.get("RELAX_DEEPEYES_QWEN_VL_PATCH") or ""
    if value.strip().lower() in OFF_VALUES:
        return
    os.environ[WATCHING] = "1"
    if not finder.is_done and finder not in sys.meta_path:
        # A new list: Python keeps the list that it started with until its very end. Our finder in there would
        # keep `os` alive, and Python would take longer to end.
        sys.meta_path = [finder, *sys.meta_path]


class SGLangFinder:
    """Meta-path finder that activates the repairs before ``sglang`` is loaded; other finders find ``sglang``.

    ``find_spec`` itself must not import anything. Python holds its global import lock there, and another
    thread that is halfway through importing the same module (``inspect``, for example) needs that lock.
    """

    def __init__(self) -> None:
        self.is_done = False  # the repairs are installed
        self._asking: Pending = set()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Return what the other finders find, with a loader that first activates the repairs."""
        if self.is_done or (fullname != "sglang" and not fullname.startswith("sglang.")):
            return None
        return found_by_others(self, self._asking, (fullname, path, target), _activate_before)


finder = SGLangFinder()


def _activate_before(module: "ModuleType") -> None:
    """Let `deepeyes_patch.bootstrap` install the repairs; it is imported here, and not when Python starts."""
    try:
        bootstrap = _imported("bootstrap")
    except Exception as error:  # half removed or half written
        raise RuntimeError(
            f"deepeyes-patch is switched on and cannot be loaded: {error}. Install it again (pip install "
            f"--force-reinstall), or set DEEPEYES_PATCH=off."
        ) from error
    bootstrap.activate()


def found_by_others(
    asking: object,
    pending: "Pending",
    question: "Question",
    before: "Step",
    after: "Step | None" = None,
) -> "ModuleSpec | None":
    """What the finders other than ``asking`` find, with a `WatchedLoader` around its loader.

    ``pending``: the questions that ``asking`` has put to the others. Another finder may call it again, as
    wrapt's does, and then gets ``None``.
    """
    key = (_thread.get_ident(), question[0])
    if key in pending:
        return None
    pending.add(key)
    try:
        for other in list(sys.meta_path):
            if other is asking or not hasattr(other, "find_spec"):
                continue
            spec = other.find_spec(*question)  # type: ignore[arg-type]
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = WatchedLoader(spec.loader, before, after)  # type: ignore[assignment]
                return spec
        return None
    finally:
        pending.discard(key)


class WatchedLoader:
    """Calls ``before``, the real loader, and ``after``. If ``before`` raises, nothing is loaded."""

    def __init__(self, loader: "Loader", before: "Step", after: "Step | None") -> None:
        self._loader = loader
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def exec_module(self, module: "ModuleType") -> None:
        self._before(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self._after is not None:
            self._after(module)


def _imported(name: str) -> "Any":
    """A module of ours, by name: modules below this one import it, and imports must not form a circle."""
    from importlib import import_module

    return import_module(f"deepeyes_patch.{name}")


def __getattr__(name: str) -> "Any":
    if name in _HOMES:
        return getattr(_imported(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
