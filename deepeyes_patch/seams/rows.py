"""What a row of the table of seams is made of. This module imports neither torch nor SGLang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# A class or module of SGLang: the object itself (`live`), or its syntax tree (`source`).
Handle = Any


@dataclass(frozen=True)
class Function:
    """What was found under a name.

    ``shown``: where it was defined, with its parameters, for messages. ``home``: the module that defined it.
    ``flaw``: why it cannot be examined, if so. ``uses``: the global names and attributes in its body.
    """

    shown: str
    home: str
    flaw: str | None = None
    parameters: tuple[str, ...] = ()
    is_coroutine: bool = False
    is_abstract: bool = False
    uses: frozenset[str] = frozenset()
    file: str | None = None


class View(Protocol):
    """The questions about SGLang that imported modules (`live`) or source files (`source`) answer."""

    def module(self, name: str) -> Handle | None:
        """The module, if it exists."""

    def classes(self, module: Handle) -> Sequence[tuple[str, Handle]]:
        """The classes that a module defines, in order, by name."""

    def named(self, module: Handle, name: str) -> Handle | None:
        """The class that a module defines or imports under this name."""

    def function(self, owner: Handle, name: str) -> Function | None:
        """The function of a module or class, its own or an inherited or imported one."""

    def defines(self, cls: Handle, name: str) -> bool:
        """Whether the body of a class itself defines this name."""

    def uses(self, cls: Handle) -> frozenset[str]:
        """The global names and attributes in the functions that the body of a class defines."""


# Looks at what a release offers, and decides. The handle is the module of the row.
Fact = Callable[[View, Handle], bool]


def always(view: View, module: Handle) -> bool:
    """The fact that holds everywhere."""
    return True


def nowhere(view: View, module: Handle) -> bool:
    """The fact that holds nowhere. Rows use it for a function that came or went with a release."""
    return False


@dataclass(frozen=True)
class Owner:
    """The classes of a module that hold the function of a row.

    ``find`` returns these classes, with their names. ``shown`` describes them. ``single``: there must be
    exactly one.
    """

    shown: str
    find: Callable[[View, Handle], Sequence[tuple[str, Handle]]]
    single: bool = True


@dataclass(frozen=True)
class Seam:
    """A row of the table: one SGLang function that a repair wraps, overrides or relies on.

    Parameters
    ----------
    repair:
        The repair that needs it.
    module:
        The SGLang module through which the function is reached.
    owner:
        The class or classes in that module; ``None``: the module itself has the function.
    signature:
        The function's name and the parameters that are read or changed: ``name(first, second)``. The function
        must have all of them. ``async`` before it: it must be async. ``async?``: it may be. Neither: it must
        not be.
    wrapper:
        Our ``module:function`` that wraps it; ``None``: it is called or overridden, not wrapped.
    releases:
        The releases in which `examine` finds it, for the documents. ``make matrix`` checks this; no code
        decides by it.
    role:
        What we do there, for the documents.
    required:
        The releases in which it must exist. In others it came or went, together with the code that it belongs
        to.
    applies:
        The releases in which the repair needs it.
    optional_module:
        Whether the module came or went with a release. If the module is absent, the row is ignored.
    traceable:
        The wrapper is a plain function made by a decorator, because ``torch.compile`` looks into it.
    door:
        Our ``module:function`` that wraps it if the rows of this module do not fit. It stops SGLang.
    imported_by_name:
        Other modules of SGLang import this function by name. Those imported earlier hold the original, so the
        wrapper is put there too.
    reported:
        `status` names this row as what was patched: the owner, or the function if there is no owner.
    mark:
        An attribute that the owner gets, too: True, so that another package's patch stands aside.
    demand:
        A further condition on the function: the problem in words, or ``None``.
    """

    repair: str
    module: str
    owner: Owner | None
    signature: str
    wrapper: str | None
    releases: str
    role: str
    required: Fact = always
    applies: Fact = always
    optional_module: bool = False
    traceable: bool = False
    door: str | None = None
    imported_by_name: bool = False
    reported: bool = False
    mark: str | None = None
    demand: Callable[[Function], str | None] | None = None

    def __str__(self) -> str:
        return self.signature.removeprefix("async? ").removeprefix("async ")

    @property
    def name(self) -> str:
        """The function's name."""
        return str(self).partition("(")[0]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The parameters that are read or changed, by name."""
        inside = str(self).partition("(")[2].rstrip(")")
        return tuple(inside.split(", ")) if inside else ()

    @property
    def coroutine(self) -> bool | None:
        """Whether it must be async; ``None``: it may be or not."""
        return None if self.signature.startswith("async? ") else self.signature.startswith("async ")


def named(name: str) -> Owner:
    """The class of this name."""

    def find(view: View, module: Handle) -> list[tuple[str, Handle]]:
        cls = view.named(module, name)
        return [] if cls is None else [(name, cls)]

    return Owner(name, find)


def having(method: str) -> Owner:
    """The one class that the module defines and that has this method, its own or an inherited one."""

    def find(view: View, module: Handle) -> list[tuple[str, Handle]]:
        return [(name, cls) for name, cls in view.classes(module) if view.function(cls, method) is not None]

    return Owner(f"the class with {method}", find)


def defining(method: str) -> Owner:
    """Every class of the module whose body defines this method."""

    def find(view: View, module: Handle) -> list[tuple[str, Handle]]:
        return [(name, cls) for name, cls in view.classes(module) if view.defines(cls, method)]

    return Owner(f"every class that defines {method}", find, single=False)


def ending(suffix: str) -> Owner:
    """Every class of the module whose name ends in this."""

    def find(view: View, module: Handle) -> list[tuple[str, Handle]]:
        return [(name, cls) for name, cls in view.classes(module) if name.endswith(suffix)]

    return Owner(f"every class named ...{suffix}", find, single=False)
