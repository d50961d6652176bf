"""Wait for the first import of ``sglang``, then hand over to `deepeyes_patch.installer`.

Standard library only, and little of it: this module is loaded in every Python process of an
environment in which a switch is on (pip, ninja, compile workers, judges), most of which never see
SGLang. wrapt, whose import costs several times a bare interpreter, comes with the installer.
"""

from __future__ import annotations

import _thread
import os
import sys
from importlib.machinery import ModuleSpec

# Tells a child that its parent was watching, or had installed, when it started the child.
_WATCHING = "_DEEPEYES_PATCH_WATCHING"
_parent_was_watching = _WATCHING in os.environ

# Whether multiprocessing started this interpreter: as a spawned child, or as the server that forks
# others. A forked child keeps what its parent had. ``multiprocessing.parent_process()`` would not do:
# it says None while a child imports its parent's script and unpickles its target, which is when
# SGLang's modules are imported.
_is_child = any(
    argument == "--multiprocessing-fork" or argument.startswith("from multiprocessing.forkserver import main")
    for argument in sys.orig_argv
)

_activation = _thread.RLock()
_activated = False


def watch_for_sglang() -> None:
    """Put one `SGLangFinder` on ``sys.meta_path``; a second call changes nothing.

    A ``.pth`` file really is processed twice in some virtual environments.
    """
    mark_watching()
    if not _activated and not is_waiting():
        sys.meta_path.insert(0, SGLangFinder())


def is_waiting() -> bool:
    """Whether a finder of ours is there, and what the environment selects not yet installed."""
    return any(isinstance(finder, SGLangFinder) for finder in sys.meta_path)


def plugin() -> None:
    """Entry point of the group ``sglang.srt.plugins`` (SGLang >= 0.5.11).

    A second road to the same place, for installations whose ``.pth`` is not read. SGLang logs and
    drops any ``Exception`` of a plugin, so what must stop it leaves as ``SystemExit``.
    """
    try:
        _activate()
    except Exception as error:
        raise SystemExit(f"deepeyes-patch: {error}") from error


def mark_watching() -> None:
    """Let the children of this process know that the switch was on before they were started."""
    os.environ[_WATCHING] = "1"


class SGLangFinder:
    """Meta-path finder that finds nothing; it notices ``sglang`` and takes itself away."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Install on the first look for ``sglang`` or a module below it; always decline the module.

        When installing fails, the module is found after all, with a loader that raises the reason:
        whoever only asks whether SGLang exists (``importlib.util.find_spec``) gets an answer, and
        whoever imports it is stopped.
        """
        if fullname != "sglang" and not fullname.startswith("sglang."):
            return None
        try:
            _activate()
        except Exception as error:  # a broken installation may raise anything
            if not self._is_found_by_others(fullname, path, target):
                return None  # no SGLang here: whoever asks is told just that
            return ModuleSpec(fullname, _RefusingLoader(error), is_package=True)  # type: ignore[arg-type]
        # Import loops over this very list, here and perhaps on other threads: taking an element out
        # in place would make them skip the next finder. They keep the old list.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        return None

    def _is_found_by_others(self, *sought: object) -> bool:
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        return any(finder.find_spec(*sought) is not None for finder in others)  # type: ignore[arg-type]


class _RefusingLoader:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: object) -> None:
        raise self._error


_UNLOADABLE = (
    "deepeyes-patch is switched on and cannot be loaded: {error}. Reinstall it (pip install "
    "--force-reinstall deepeyes-patch), which brings wrapt along, or set DEEPEYES_PATCH=off."
)


def _activate() -> None:
    """Install what the environment selects; every caller gets the same error until it succeeds."""
    global _activated
    with _activation:
        if _activated:
            return
        try:
            from deepeyes_patch import errors, settings
        except Exception as error:  # missing, or half written
            raise RuntimeError(_UNLOADABLE.format(error=error)) from error

        selected = settings.read(os.environ)
        if selected.repairs:
            _refuse_half_on(selected.source)
            try:
                from deepeyes_patch import installer
            except Exception as error:  # half a wrapt raises AttributeError
                raise errors.DeepEyesPatchError(_UNLOADABLE.format(error=error)) from error
            installer.install(selected.repairs)
        _activated = True


def _refuse_half_on(source: str | None) -> None:
    """Stop a child whose parent ran without the switch.

    The tokenizer manager lives in the parent and the models in its children. A script that sets the
    variable after its interpreter started would get the repairs in the children alone.
    """
    if not _is_child or _parent_was_watching:
        return
    from deepeyes_patch.errors import SettingsError

    raise SettingsError(
        f"{source} was set after the parent of this process had started, so the parent runs without "
        f"the repairs. Set it before Python starts, or call deepeyes_patch.install() in the parent "
        f"before it starts other processes."
    )
