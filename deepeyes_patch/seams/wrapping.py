"""Put wrappers on classes and modules, recognize them, and take them off.

This is the only place that changes a class or module of SGLang, and the only place that calls an SGLang
function from one of our wrappers. A wrapper is a function of one argument, the `Call`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import MethodType, ModuleType
from typing import Any

import wrapt

from deepeyes_patch.errors import DeepEyesPatchError, InternalError, RefusedRequest
from deepeyes_patch.observe import counters


class Call:
    """One call of an SGLang function that carries our wrapper.

    ``instance``: the object whose method it is; ``None`` for a function.
    """

    __slots__ = ("_args", "_bound", "_kwargs", "_raised", "_wrapped", "instance")

    def __init__(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
        self.instance = instance
        self._wrapped = wrapped
        self._args = args
        self._kwargs = kwargs
        self._bound: inspect.BoundArguments | None = None
        self._raised: BaseException | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call, by name. `proceed` hands on what is changed here."""
        if self._bound is None:
            try:
                self._bound = _signature_of(self._wrapped).bind(*self._args, **self._kwargs)
            except TypeError as error:  # the caller's mistake: the function could not be called either
                self._raised = error
                raise
        return self._bound.arguments

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of all arguments, without their names."""
        return (*self._args, *self._kwargs.values())

    def get(self, name: str) -> Any:
        """An argument that a release declares by name or collects in ``**kwargs``; ``None`` if not given."""
        arguments = self.arguments
        return arguments[name] if name in arguments else arguments.get("kwargs", {}).get(name)

    def proceed(self) -> Any:
        """Call SGLang's own function; for an async one, return what has to be awaited."""
        bound = self._bound
        try:
            if bound is None:
                result = self._wrapped(*self._args, **self._kwargs)
            else:
                result = self._wrapped(*bound.args, **bound.kwargs)
        except Exception as error:
            self._raised = error
            raise
        return self._awaited(result) if inspect.iscoroutine(result) else result

    async def _awaited(self, result: Awaitable[Any]) -> Any:
        try:
            return await result
        except Exception as error:
            self._raised = error
            raise

    def failure(self, error: Exception) -> Exception:
        """Our wrapper raised ``error``: return the exception that its caller gets.

        A refusal, an error that we raise on purpose and an exception of SGLang stay as they are. Anything
        else is a fault in our own code. It must not look like a fault of the client, as a ValueError would.
        """
        if isinstance(error, RefusedRequest):
            with contextlib.suppress(Exception):  # the client gets the refusal, counted or not
                counters.count_refusal(error)
            return error
        if isinstance(error, DeepEyesPatchError) or error is self._raised:
            return error
        name = getattr(self._wrapped, "__qualname__", repr(self._wrapped))
        return InternalError(
            f"deepeyes-patch failed in its wrapper of {name}: {type(error).__name__}: {error}. This is a "
            f"fault of deepeyes-patch, not of the request; please report it with its traceback"
        )


# One of our wrappers: (call) -> result. It may be async if the function that it wraps is async.
Wrapper = Callable[[Call], Any]


class SeamWrapper(wrapt.FunctionWrapper):  # type: ignore[type-arg]  # 1.16 has no type parameters
    """A wrapt wrapper that can be told from other packages' wrappers."""


def _guarded(wrapper: Wrapper) -> Callable[..., Any]:
    """``wrapper`` in the form that wrapt calls. Every exception out of it goes through `Call.failure`."""

    def guarded(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = Call(wrapped, instance, args, kwargs)
        try:
            result = wrapper(call)
        except Exception as error:
            failure = call.failure(error)
            if failure is error:
                raise
            raise failure from error
        return _guarded_later(call, result) if inspect.iscoroutine(result) else result

    return guarded


async def _guarded_later(call: Call, result: Awaitable[Any]) -> Any:
    try:
        return await result
    except Exception as error:
        failure = call.failure(error)
        if failure is error:
            raise
        raise failure from error


def unwrapped(function: Any) -> Iterator[Any]:
    """A function, the function that it wraps, and so on; each once, also if they wrap each other."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = getattr(function, "__wrapped__", None)


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
        # Other packages keep and call ``Class.method``, which is a binding of the wrapper.
        return any(
            function is self.wrapper or getattr(function, "_self_parent", None) is self.wrapper
            for function in unwrapped(inspect.getattr_static(self.owner, self.name, None))
        )


_placements: list[_Placement] = []
_marks: list[tuple[Any, str]] = []


def wrap(owner: Any, name: str, wrapper: Wrapper) -> None:
    """Wrap ``name`` of a class or module, once.

    An inherited function is wrapped on ``owner`` alone. A wrapper on the base class would change the
    processors of other models.
    """
    _place(owner, name, lambda current: SeamWrapper(current, _guarded(wrapper)))


def mark(owner: Any, name: str) -> None:
    """Set an attribute of a class to True, until `restore_all`, unless the class has it."""
    if name not in vars(owner):
        setattr(owner, name, True)
        _marks.append((owner, name))


def wrap_traceably(
    owner: Any, name: str, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """`wrap` with a plain function, for a function that ``torch.compile`` traces.

    ``torch.compile`` cannot look into wrapt's objects where SGLang compiles a forward (as a method bound by
    hand), and SGLang reads ``forward.__code__``. ``decorate`` makes the wrapper from the original, with
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
    """(qualified name, what is there now) for each of our wrappers that calls no longer reach."""
    return [
        (str(placement), inspect.getattr_static(placement.owner, placement.name, None))
        for placement in _placements
        if not placement.in_force()
    ]


def forget(module: ModuleType) -> None:
    """A module is executed once more: the functions that were wrapped in it are gone."""
    _placements[:] = [placement for placement in _placements if placement.owner is not module]


def restore_all() -> None:
    """Put every original back.

    Raises
    ------
    RuntimeError
        Another package has wrapped or replaced a function after us. Nothing is changed then, because putting
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
    while _marks:
        delattr(*_marks.pop())
    of_modules = [placement for placement in _placements if isinstance(placement.owner, ModuleType)]
    while _placements:
        placement = _placements.pop()
        if placement.inherited:
            delattr(placement.owner, placement.name)
        else:
            setattr(placement.owner, placement.name, placement.original)
    originals = {id(placement.wrapper): placement.original for placement in of_modules}
    for module, name, wrapper in _holders([placement.wrapper for placement in of_modules]):
        original = originals[id(wrapper)]
        while id(original) in originals:  # a wrapper of ours around another one
            original = originals[id(original)]
        setattr(module, name, original)


def hand_to_importers(owner: Any, name: str, original: Any) -> None:
    """Give our wrapper to every module that imported the original before, under whatever name.

    A model may lie outside of SGLang. `restore_all` gives the original back to them, and to those that
    imported our wrapper since.
    """
    wrapper = getattr(owner, name)
    for module, alias, _ in _holders([original]):
        setattr(module, alias, wrapper)


def _holders(functions: Sequence[Any]) -> list[tuple[Any, str, Any]]:
    """(module, name, function) of each global that is one of these very functions, by one look at all."""
    wanted = set(map(id, functions))
    return [
        (module, name, value)
        for module in list(sys.modules.values())
        for name, value in list((getattr(module, "__dict__", None) or {}).items())
        if id(value) in wanted
    ]


def _signature_of(wrapped: Callable[..., Any]) -> inspect.Signature:
    """The signature of a wrapped function without ``self``, so that arguments have names."""
    if isinstance(wrapped, wrapt.PartialCallableObjectProxy):
        # ``Class.method(instance, ...)``: wrapt holds the instance, and before 2.0 still shows ``self``.
        return _signature(wrapped.__wrapped__, bound=True)
    if inspect.ismethod(wrapped):
        return _signature(wrapped.__func__, bound=True)
    return _signature(wrapped, bound=False)


@functools.lru_cache(maxsize=128)  # reading it takes longer than all our other work on a text prompt
def _signature(function: Callable[..., Any], bound: bool) -> inspect.Signature:
    return inspect.signature(MethodType(function, object()) if bound else function)
