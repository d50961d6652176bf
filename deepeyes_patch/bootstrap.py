"""What the finder of `deepeyes_patch` calls when ``sglang`` is first imported; it hands over to the repairs.

No process loads this module that does not import SGLang. wrapt is imported later still, by
`deepeyes_patch.startup.activation`: a damaged installation must have been noticed by then.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module

import deepeyes_patch

# A name, because it is imported late: that module and those below it import this one, and imports must not
# form a circle.
_ACTIVATION = "deepeyes_patch.startup.activation"

UNLOADABLE = (
    "deepeyes-patch is switched on and cannot be loaded: {error}. Install it again (pip "
    "install --force-reinstall), which brings wrapt along, or set DEEPEYES_PATCH=off."
)

_activation = threading.RLock()


def is_waiting() -> bool:
    """Whether our finder still waits for SGLang, so that the selected repairs are not installed yet."""
    return deepeyes_patch.finder in sys.meta_path


def mark_watching() -> None:
    """Let the children of this process know that the switch was on before they were started."""
    os.environ[deepeyes_patch.WATCHING] = "1"


def unmark_watching() -> None:
    """Let the children of this process know that it runs without the repairs, as its parent does."""
    os.environ.pop(deepeyes_patch.WATCHING, None)


def is_child_of_unpatched_parent() -> bool:
    """Whether multiprocessing started this process, and its parent had no finder of ours."""
    return not deepeyes_patch.PARENT_WAS_WATCHING and _is_child()


def _is_child() -> bool:
    """Whether multiprocessing started this interpreter: as a spawned child, or as the fork server.

    A forked child keeps the hooks of its parent. ``multiprocessing.parent_process()`` cannot be used: it
    returns None while a child imports its parent's script and unpickles its target, and SGLang's modules are
    imported then.
    """
    server = "from multiprocessing.forkserver import main"
    return any(
        argument == "--multiprocessing-fork" or argument.startswith(server) for argument in sys.orig_argv
    )


def plugin() -> None:
    """Entry point of the group ``sglang.srt.plugins`` (SGLang >= 0.5.11).

    A second way to activate the repairs, for installations whose ``.pth`` Python does not read. SGLang logs
    and drops any ``Exception`` of a plugin, so an error that must stop SGLang is raised as ``SystemExit``. If
    no switch is set, there is nothing to install, and a damaged installation does not matter.
    """
    if not (os.environ.get("DEEPEYES_PATCH") or os.environ.get("RELAX_DEEPEYES_QWEN_VL_PATCH")):
        return
    try:
        activate()
    except Exception as error:
        raise SystemExit(f"deepeyes-patch: {error}") from error


def require_same_version() -> None:
    """Stop if another version of this package has been installed since this process started.

    Otherwise modules of both versions would be mixed. If the package has been removed, the import that
    follows raises.

    Raises
    ------
    RuntimeError
        The package's file names another version than the version that this process loaded.
    """
    package = sys.modules["deepeyes_patch"]
    if not hasattr(package, "__version__"):  # its file is damaged: the import that follows raises
        return
    try:
        source = package.__spec__.loader.get_source("deepeyes_patch")  # type: ignore[union-attr]
    except (ImportError, OSError):
        return
    if source is not None and f'__version__ = "{package.__version__}"' not in source:
        raise RuntimeError(
            f"deepeyes-patch {package.__version__} was replaced by another version while this process was "
            f"starting, and modules of both would be mixed. Start it again."
        )


def activate() -> None:
    """Install the repairs that the environment selects. Until that succeeds, every call raises the error."""
    with _activation:
        try:
            finder = deepeyes_patch.finder
        except AttributeError as error:  # its file is damaged, and SGLang has called `plugin`
            raise RuntimeError(UNLOADABLE.format(error=error)) from error
        if finder.is_done:
            return
        require_same_version()
        try:
            activation = import_module(_ACTIVATION)
        except Exception as error:  # a module of ours is missing or half written
            raise RuntimeError(UNLOADABLE.format(error=error)) from error
        activation.activate()
        finder.is_done = True
        # Imports on other threads may be looping over this list. Removing an element in place would make
        # them skip the next finder. So they keep the old list, and a new list replaces it.
        sys.meta_path = [other for other in sys.meta_path if other is not finder]
