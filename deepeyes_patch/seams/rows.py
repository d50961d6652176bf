"""What a row of the table of seams is made of. Free of torch and SGLang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# What stands for a class or module of SGLang's: the thing itself, or its syntax tree.
Handle = Any


@dataclass(frozen=True)
class Function:
    """What stands under a name.

    ``shown``: where it was defined, with its parameters, for messages. ``home``: the module that defined it.
    ``flaw``: why it cannot be looked into, if so. ``names``: the names of its local variables and parameters.
    """

    shown: str
    home: str
    flaw: str | None = None
    parameters: tuple[str, ...] = ()
    is_coroutine: bool = False
    is_abstract: bool = False
    names: frozenset[str] = frozenset()
    file: str | None = None


class View(Protocol):
    """What can be asked about SGLang: of its imported modules (`live`) or of its source (`source`)."""

    def module(self, name: str) -> Handle | None:
        """The module, if it is there."""

    def classes(self, module: Handle) -> Sequence[tuple[str, Handle]]:
        """The classes that a module defines, in order, by name."""

    def named(self, module: Handle, name: str) -> Handle | None:
        """The class that a module defines or imports under this name."""

    def function(self, owner: Handle, name: str) -> Function | None:
        """The function of a module or class, its own or an inherited or imported one."""

    def defines(self, cls: Handle, name: str) -> bool:
        """Whether the body of a class itself defines this name."""


# Decides by what a release offers. The handle is that of the row's module.
Fact = Callable[[View, Handle], bool]


def always(view: View, module: Handle) -> bool:
    """The fact that holds everywhere."""
    return True


def nowhere(view: View, module: Handle) -> bool:
    """The fact that holds nowhere: of a function that came or went with a release."""
    return False


@dataclass(frozen=True)
class Owner:
    """Where the functions of a row stand in its module.

    ``find`` gives the classes, by name, on each of which a row has a function. ``shown`` describes them.
    ``single``: there has to be exactly one.
    """

    shown: str
    find: Callable[[View, Handle], Sequence[tuple[str, Handle]]]
    single: bool = True


@dataclass(frozen=True)
class Seam:
    """One function of SGLang's that a repair takes hold of: a row of the table.

    Parameters
    ----------
    repair:
        The repair that needs it.
    module:
        The module of SGLang's through which it is reached.
    owner:
        The class or classes in that module; ``None``: the function stands in the module itself.
    signature:
        The function's name and the parameters that are read or changed: ``name(first, second)``. All of them
        must be there. ``async`` before it: it must be async. ``async?``: it may be. Neither: it must not be.
    wrapper:
        ``module:function`` of ours that is put around it; ``None``: it is called or overridden, not wrapped.
    releases:
        The releases in which `examine` finds it, for the documents; ``make matrix`` checks it and nothing is
        decided by it.
    role:
        What we do there, for the documents.
    required:
        Where it has to be there. Elsewhere it came or went with a release, along with the code it belongs to.
    applies:
        Where the repair needs it at all.
    optional_module:
        Whether the module came or went with a release; where it is absent the row means nothing.
    traceable:
        The wrapper is a plain function made by a decorator, because ``torch.compile`` looks into it.
    door:
        ``module:function`` of ours that is put there when the rows of this module do not fit: it stops
        SGLang.
    imported_by_name:
        Modules of SGLang's import this function by name, so that those imported earlier hold the original.
    reported:
        `status` names this one as what was patched: the owner, or the function where it has no owner.
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
