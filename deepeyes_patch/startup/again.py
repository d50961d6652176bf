"""Patch a module again that is imported again.

Test runners and plugin managers take modules out of ``sys.modules``, and the next import makes new ones.
wrapt forgets a hook when it has run. So a finder of ours wraps the loader of a module whose hooks have run,
and runs them on what is loaded then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from deepeyes_patch import found_by_others
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
        if hooks is None:
            return None
        known = list(hooks.values())

        def run(module: ModuleType) -> None:
            for hook in known:
                hook(module)

        # `importlib.reload` fills the same module with new functions.
        return found_by_others(self, self._asking, (fullname, path, target), wrapping.forget, run)


finder = AgainFinder()
