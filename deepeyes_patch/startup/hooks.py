"""Post-import hooks, made from the table of seams: one for each repair and module.

A hook never raises, for two reasons. SGLang turns an exception during the import of one of its processor
modules into a warning and goes on. And wrapt runs a hook that raises only once, so the next import would get
the module unpatched. Instead, `outcomes` keeps the failure, and the hook wraps the *doors* of the module:
functions that raise the failure at a point where it stops SGLang.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import wrapt

# These two modules hold the doors. They are imported now, so that a damaged one stops SGLang at once.
from deepeyes_patch.mrope import building as _building  # noqa: F401
from deepeyes_patch.observe import outcomes
from deepeyes_patch.seams import table, wrapping
from deepeyes_patch.seams.examine import Finding, examine, require
from deepeyes_patch.seams.live import LiveView
from deepeyes_patch.seams.rows import Seam
from deepeyes_patch.startup import again, integrity
from deepeyes_patch.startup import stops as _stops  # noqa: F401

Hook = Callable[[ModuleType], None]

lock = threading.RLock()


def register(repair: str) -> None:
    """Patch the modules of a repair: imported modules now, the others when they are imported."""
    for module_name in table.modules(repair):
        hook = _make(repair, module_name)
        module = sys.modules.get(module_name)
        if module is not None and _is_being_imported(module):
            _when_complete(module, hook)
        else:
            # wrapt forgets a hook once its module is imported. So registering it again patches a module that
            # was imported before. `wrapping` prevents wrapping twice.
            wrapt.register_post_import_hook(hook, module_name)


def _make(repair: str, module_name: str) -> Hook:
    """A hook that patches a module, and keeps the outcome or the failure."""
    rows = table.rows(repair, module_name)

    def hook(module: ModuleType) -> None:
        with lock:
            if repair not in outcomes.wanted():
                return
            again.finder.remember(module_name, repair, hook)
            try:
                words = _patch(repair, rows)
            except Exception as error:  # any error must be raised later, where it stops SGLang
                outcomes.failed(repair, error)
                _close_doors(repair, rows)
            else:
                outcomes.succeeded(repair, words)

    return hook


def _patch(repair: str, rows: Sequence[Seam]) -> str | None:
    """Wrap all functions that the rows of one module name, or none; return the text that `status` shows."""
    findings = examine(LiveView(), rows)
    require(findings, repair)
    usable = [finding for finding in findings if finding.present]
    wrappers = [finding.seam.wrapper and integrity.load(finding.seam.wrapper) for finding in usable]
    for finding, wrapper in zip(usable, wrappers, strict=True):
        if wrapper is not None:
            _wrap(finding, wrapper)
    for finding in usable:
        if finding.seam.reported:
            return f"patched ({finding.owner if finding.seam.owner else finding.seam.name})"
    if any(seam.reported for seam in rows) and not outcomes.is_known(repair):
        return outcomes.NATIVE
    return None


def _wrap(finding: Finding, wrapper: Any) -> None:
    name = finding.seam.name
    if finding.seam.traceable:
        wrapping.wrap_traceably(finding.handle, name, wrapper)
        return
    original = getattr(finding.handle, name, None)
    wrapping.wrap(finding.handle, name, wrapper)
    if finding.seam.mark is not None:
        wrapping.mark(finding.handle, finding.seam.mark)
    if finding.seam.imported_by_name:
        wrapping.hand_to_importers(finding.handle, name, original)


def _close_doors(repair: str, rows: Sequence[Seam]) -> None:
    """Wrap the doors of a module that fit, even if its other functions do not, so that SGLang still stops."""
    for finding in examine(LiveView(), [row for row in rows if row.door is not None]):
        if finding.present and finding.seam.door is not None:
            # `outcomes` has the first failure already. Another one here must not keep the next door open.
            with contextlib.suppress(Exception):
                wrapping.wrap(finding.handle, finding.seam.name, integrity.load(finding.seam.door))


# --- modules that are being imported while `install` runs ---------------------------------------------


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _when_complete(module: ModuleType, hook: Hook) -> None:
    """The import of a module is under way: register a hook as soon as that import has ended.

    wrapt would run the hook at once, on a module that is only half imported. The import system sets
    ``__spec__._initializing`` to False when it is done. So the spec gets a class that notices this. The hook
    runs before the flag is set: until then, no other thread gets the module.
    """
    spec: Any = module.__spec__
    original = type(spec)

    class Noticing(original):  # type: ignore[misc,valid-type]
        @property
        def _initializing(self) -> bool:
            return bool(self.__dict__["_initializing"])

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            if value:
                self.__dict__["_initializing"] = value
            else:
                finish()

    def finish() -> None:
        spec.__class__ = original
        # wrapt runs the hook now, or with the next import if this one has failed.
        wrapt.register_post_import_hook(hook, module.__name__)
        spec._initializing = False  # if `original` is another Noticing class, its hook runs now

    spec.__class__ = Noticing
    if not spec.__dict__["_initializing"]:  # it ended on another thread meanwhile
        finish()
