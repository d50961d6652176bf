"""Put wrappers on classes and modules, know them again, and take them off.

The only place that changes a class or module of SGLang's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

import wrapt

# (wrapped, instance, args, kwargs) -> result, as wrapt calls it
Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class SeamWrapper(wrapt.FunctionWrapper):  # type: ignore[type-arg]  # 1.16 has no type parameters
    """A wrapt wrapper that can be told from other packages' wrappers."""


class _Placement:
    def __init__(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        self.owner = owner
        self.name = name
        self.wrapper = wrapper
        self.inherited = name not in vars(owner)
        self.original = vars(owner).get(name)

    def __str__(self) -> str:
        return f"{self.owner.__name__}.{self.name}"

    def in_force(self) -> bool:
        """Whether calls still reach our wrapper, directly or below wrappers of other packages."""
        current = inspect.getattr_static(self.owner, self.name, None)
        while current is not None:
            # ``Class.method``, which other packages keep and call, is a binding of the wrapper.
            if current is self.wrapper or getattr(current, "_self_parent", None) is self.wrapper:
                return True
            current = getattr(current, "__wrapped__", None)
        return False


_placements: list[_Placement] = []


def wrap(owner: Any, name: str, wrapper: Wrapper) -> None:
    """Wrap ``name`` of a class or module once; an inherited function is wrapped on ``owner`` alone.

    Wrapping on the class itself and not on a base leaves every other model's processor as it is.
    """
    _place(owner, name, lambda current: SeamWrapper(current, wrapper))


def wrap_traceably(
    owner: Any, name: str, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """`wrap` with a plain function, for what ``torch.compile`` has to trace.

    It cannot look into wrapt's objects where SGLang compiles a forward (as a method bound by hand), and
    SGLang reads ``forward.__code__``. ``decorate`` makes the wrapper from the original, with
    `functools.wraps`.
    """
    _place(owner, name, decorate)


def _place(owner: Any, name: str, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    current = inspect.getattr_static(owner, name)
    if any(p.owner is owner and p.name == name and p.in_force() for p in _placements):
        return
    placement = _Placement(owner, name, decorate(current))
    setattr(owner, name, placement.wrapper)
    _placements.append(placement)


def displaced() -> list[tuple[str, Any]]:
    """(qualified name, what stands there now) for each wrapper of ours that calls no longer reach."""
    return [
        (str(placement), inspect.getattr_static(placement.owner, placement.name, None))
        for placement in _placements
        if not placement.in_force()
    ]


def restore_all() -> None:
    """Put every original back.

    Raises
    ------
    RuntimeError
        Another package has wrapped or replaced a function after us. Nothing is changed then: putting
        the original back would take that package's work away too.
    """
    foreign = [
        str(placement)
        for placement in _placements
        if vars(placement.owner).get(placement.name) is not placement.wrapper
    ]
    if foreign:
        raise RuntimeError(
            f"deepeyes-patch leaves its wrappers in place: another package has wrapped or replaced "
            f"{', '.join(foreign)} since; undo that first"
        )
    while _placements:
        placement = _placements.pop()
        if placement.inherited:
            delattr(placement.owner, placement.name)
        else:
            setattr(placement.owner, placement.name, placement.original)


def bind(
    wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Bind a call to the signature of the wrapped function, so that arguments have names."""
    if isinstance(wrapped, wrapt.PartialCallableObjectProxy):
        # ``Class.method(instance, ...)``: wrapt holds the instance, and before 2.0 still shows ``self``.
        signature = _signature(wrapped.__wrapped__, bound=True)
    elif inspect.ismethod(wrapped):
        signature = _signature(wrapped.__func__, bound=True)
    else:
        signature = _signature(wrapped, bound=False)
    return signature.bind(*args, **kwargs)


@functools.lru_cache(maxsize=128)  # reading it takes longer than all else that a text prompt meets here
def _signature(function: Callable[..., Any], bound: bool) -> inspect.Signature:
    return inspect.signature(MethodType(function, object()) if bound else function)
