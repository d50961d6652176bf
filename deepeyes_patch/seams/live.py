"""Lets `examine` look at SGLang's imported modules."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from deepeyes_patch.seams.rows import Function


class LiveView:
    """The imported modules of this process; see `rows.View`. Nothing is imported."""

    def module(self, name: str) -> ModuleType | None:
        return sys.modules.get(name)

    def classes(self, module: ModuleType) -> list[tuple[str, type]]:
        found: dict[type, str] = {}
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__:
                found.setdefault(value, name)  # a class may have a second name
        return [(name, cls) for cls, name in found.items()]

    def named(self, module: ModuleType, name: str) -> type | None:
        found = getattr(module, name, None)
        return found if isinstance(found, type) else None

    def defines(self, cls: type, name: str) -> bool:
        return name in vars(cls)

    def uses(self, cls: type) -> frozenset[str]:
        codes = (getattr(inspect.unwrap(f), "__code__", None) for f in vars(cls).values() if callable(f))
        return frozenset(name for code in codes if code for name in code.co_names)

    def function(self, owner: Any, name: str) -> Function | None:
        try:
            static = inspect.getattr_static(owner, name)
        except AttributeError:
            return None
        function = static.__func__ if isinstance(static, (staticmethod, classmethod)) else static
        home = getattr(function, "__module__", None) or ""
        if not callable(function):
            return Function(repr(function), home, "not a function")
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return Function(repr(function), home, "its signature cannot be read")
        # Without annotations: a report should be readable.
        signature = ", ".join(str(p.replace(annotation=p.empty)) for p in parameters.values())
        code = getattr(inspect.unwrap(function), "__code__", None)
        return Function(
            shown=f"{origin(function)}({signature})",
            home=home,
            parameters=tuple(parameters),
            is_coroutine=inspect.iscoroutinefunction(function),
            is_abstract=getattr(function, "__isabstractmethod__", False),
            uses=frozenset(code.co_names if code else ()),
            file=code.co_filename if code else None,
        )


def origin(function: Any) -> str:
    """``module.qualified_name`` of a function or class, as far as it has them."""
    module = getattr(function, "__module__", None) or "an unknown module"
    name = getattr(function, "__qualname__", None) or repr(function)
    return f"{module}.{name}"
