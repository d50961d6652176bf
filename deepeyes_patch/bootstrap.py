"""Wait for the first import of ``sglang``, then hand over to `deepeyes_patch.startup.activation`.

This module imports little, and only from the standard library. If a switch is on, every Python process of the
environment loads it (pip, ninja, compile workers, reward judges), and most of them never import SGLang.
wrapt is imported later, because its import costs several times as much as a bare interpreter.
"""

import _thread
import os
import sys

TYPE_CHECKING = False  # each import, even `__future__`, adds to the start-up cost of every process
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Question = tuple[str, object, object]  # what a finder is asked: name, path, target
    Pending = set[tuple[int, str]]  # thread and name
    Step = Callable[[ModuleType], None]

# Tells a child process: its parent had our finder, or had called `install`, when it started the child.
_WATCHING = "_DEEPEYES_PATCH_WATCHING"
_parent_was_watching = _WATCHING in os.environ

# Whether multiprocessing started this interpreter: as a spawned child, or as the fork server. (A forked
# child keeps the hooks of its parent.) ``multiprocessing.parent_process()`` cannot be used: it returns None
# while a child imports its parent's script and unpickles its target, and SGLang's modules are imported then.
_is_child = any(
    argument == "--multiprocessing-fork" or argument.startswith("from multiprocessing.forkserver import main")
    for argument in sys.orig_argv
)

# A name, because it is imported late: that module and those below it import this one, and imports must not
# form a circle.
_ACTIVATION = "deepeyes_patch.startup.activation"

UNLOADABLE = (
    "deepeyes-patch is switched on and cannot be loaded: {error}. Install it again (pip "
    "install --force-reinstall), which brings wrapt along, or set DEEPEYES_PATCH=off."
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
    """Whether our finder still waits for SGLang, so that the selected repairs are not installed yet."""
    return any(isinstance(finder, SGLangFinder) for finder in sys.meta_path)


def mark_watching() -> None:
    """Let the children of this process know that the switch was on before they were started."""
    os.environ[_WATCHING] = "1"


def unmark_watching() -> None:
    """Let the children of this process know that it runs without the repairs, as its parent does."""
    os.environ.pop(_WATCHING, None)


def is_child_of_unpatched_parent() -> bool:
    """Whether multiprocessing started this process, and its parent had no finder of ours."""
    return _is_child and not _parent_was_watching


class SGLangFinder:
    """Meta-path finder that activates the repairs before ``sglang`` is loaded; other finders find ``sglang``.

    ``find_spec`` itself must not import anything. Python holds its global import lock there, and another
    thread that is halfway through importing the same module (``inspect``, for example) needs that lock.
    """

    def __init__(self) -> None:
        self._asking: set[tuple[int, str]] = set()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Return what the other finders find, with a loader that first activates the repairs."""
        if _activated or (fullname != "sglang" and not fullname.startswith("sglang.")):
            return None
        return found_by_others(self, self._asking, (fullname, path, target), _activate_before)


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
        spec = _first_of_others(asking, question)
    finally:
        pending.discard(key)
    if spec is not None and spec.loader is not None:
        spec.loader = WatchedLoader(spec.loader, before, after)  # type: ignore[assignment]
    return spec


def _first_of_others(asking: object, question: "Question") -> "ModuleSpec | None":
    for finder in list(sys.meta_path):
        if finder is not asking and hasattr(finder, "find_spec"):
            spec = finder.find_spec(*question)  # type: ignore[arg-type]
            if spec is not None:
                return spec
    return None


class WatchedLoader:
    """Calls ``before``, the real loader, and ``after``. If ``before`` raises, nothing is loaded."""

    def __init__(
        self,
        loader: "Loader",
        before: "Step",
        after: "Step | None",
    ) -> None:
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


def plugin() -> None:
    """Entry point of the group ``sglang.srt.plugins`` (SGLang >= 0.5.11).

    A second way to activate the repairs, for installations whose ``.pth`` Python does not read. SGLang logs
    and drops any ``Exception`` of a plugin, so an error that must stop SGLang is raised as ``SystemExit``. If
    no switch is set, there is nothing to install, and a damaged installation does not matter.
    """
    if not (os.environ.get("DEEPEYES_PATCH") or os.environ.get("RELAX_DEEPEYES_QWEN_VL_PATCH")):
        return
    try:
        _activate()
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


def _activate_before(module: "ModuleType") -> None:
    _activate()


def _activate() -> None:
    """Install the repairs that the environment selects. Until that succeeds, every call raises the error."""
    global _activated
    with _activation:
        if _activated:
            return
        require_same_version()
        try:
            from importlib import import_module

            activation = import_module(_ACTIVATION)
        except Exception as error:  # a module of ours is missing or half written
            raise RuntimeError(UNLOADABLE.format(error=error)) from error
        activation.activate()
        _activated = True
        # Imports on other threads may be looping over this list. Removing an element in place would make
        # them skip the next finder. So they keep the old list, and a new list replaces it.
        sys.meta_path = [finder for finder in sys.meta_path if not isinstance(finder, SGLangFinder)]
