"""Patch a module again that is imported again.

Test runners and plugin managers take modules out of ``sys.modules``, and the next import makes new ones.
wrapt forgets a hook when it has run. So a finder of ours wraps the loader of a module whose hooks have run,
and runs them on what is loaded then.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from deepeyes_patch.seams import wrapping

Hook = Callable[[ModuleType], None]


class AgainFinder:
    """Meta-path finder for modules whose hooks have run; other finders find them. It imports nothing."""

    def __init__(self) -> None:
        self._hooks: dict[str, dict[str, Hook]] = {}
        self._asking: set[tuple[int, str]] = set()

    def remember(self, module: str, repair: str, hook: Hook) -> None:
        """The hook of a repair has run on a module."""
        self._hooks.setdefault(module, {})[repair] = hook
        if self not in sys.meta_path:
            # A new list: imports on other threads may be looping over the old one.
            sys.meta_path = [self, *sys.meta_path]

    def forget(self) -> None:
        """No repair is installed any more."""
        self._hooks.clear()
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return what the other finders find, with a loader that runs the hooks."""
        hooks = self._hooks.get(fullname)
        question = (_thread.get_ident(), fullname)
        if hooks is None or question in self._asking:
            return None
        self._asking.add(question)
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._asking.discard(question)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookingLoader(spec.loader, list(hooks.values()))  # type: ignore[assignment]
        return spec

    def _ask_others(self, *question: Any) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec: ModuleSpec | None = finder.find_spec(*question)
                if spec is not None:
                    return spec
        return None


class _HookingLoader:
    def __init__(self, loader: Any, hooks: list[Hook]) -> None:
        self._loader = loader
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        wrapping.forget(module)  # `importlib.reload` fills the same module with new functions
        self._loader.exec_module(module)
        for hook in self._hooks:
            hook(module)


finder = AgainFinder()
