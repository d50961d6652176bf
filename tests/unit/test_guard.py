"""What leaves one of our wrappers: refusals, SGLang's own exceptions, and faults of our own code.

Before the rebuild a refusal was recognised by the function of ours that had raised it, and every ValueError
of our own code reached the client as HTTP 400: an accident in our code was called the client's fault.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deepeyes_patch import DeepEyesPatchError, RefusedRequest
from deepeyes_patch.errors import IncompatibleSGLangError, InternalError, UnsupportedConfigError
from deepeyes_patch.observe import counters, record
from deepeyes_patch.seams import wrapping
from deepeyes_patch.seams.wrapping import Call


class Stock:
    """Stands for SGLang; what it raises is set by the test."""

    error: BaseException | None = None

    def plain(self, prompt: Any = None) -> str:
        if self.error is not None:
            raise self.error
        return "stock"

    async def coroutine(self, prompt: Any = None) -> str:
        await asyncio.sleep(0)
        return self.plain()


@pytest.fixture
def stock() -> Iterator[type[Stock]]:
    """A class made for the test, so that nothing is left on it afterwards."""
    yield type("Stock", (Stock,), {})
    wrapping._placements.clear()


@pytest.fixture
def counts() -> Iterator[Callable[[], dict[str, int]]]:
    """The counts of this process that are not 0."""
    record.publish("1.2", {"processor": "patched"}, counters.NAMES)

    def read() -> dict[str, int]:
        kept = record.read(bytes(record._memory[: record.SIZE]))
        assert kept is not None
        return {name: count for name, count in kept["counts"].items() if count}

    yield read
    record.withdraw()


def call(owner: type[Stock], name: str, error: BaseException | None = None) -> Any:
    instance = owner()
    instance.error = error
    result = getattr(instance, name)()
    return asyncio.run(result) if inspect.iscoroutine(result) else result


# --- wrappers that raise before SGLang's function is called, and after it ---------------------------------

Raises = Callable[[], None]


def plain_before(fault: Raises) -> wrapping.Wrapper:
    def wrapper(call: Call) -> Any:
        fault()
        return call.proceed()

    return wrapper


def plain_after(fault: Raises) -> wrapping.Wrapper:
    def wrapper(call: Call) -> Any:
        call.proceed()
        fault()

    return wrapper


def async_before(fault: Raises) -> wrapping.Wrapper:
    async def wrapper(call: Call) -> Any:
        fault()
        return await call.proceed()

    return wrapper


def async_after(fault: Raises) -> wrapping.Wrapper:
    async def wrapper(call: Call) -> Any:
        await call.proceed()
        fault()

    return wrapper


def coroutine_after(fault: Raises) -> wrapping.Wrapper:
    """As ``load_media`` is: a plain function that returns a coroutine for an async function."""

    async def later(loading: Any) -> Any:
        await loading
        fault()

    return lambda call: later(call.proceed())


WRAPPERS = [
    ("plain", plain_before),
    ("plain", plain_after),
    ("coroutine", plain_before),
    ("coroutine", async_before),
    ("coroutine", async_after),
    ("coroutine", coroutine_after),
]


def raising(error: Exception) -> Raises:
    def fault() -> None:
        raise error

    return fault


@pytest.mark.parametrize(("name", "make"), WRAPPERS)
@pytest.mark.parametrize(
    "fault",
    [
        ValueError("cannot reshape array of size 3"),
        AttributeError("'NoneType' object has no attribute 'shape'"),
        AssertionError(),
    ],
)
def test_a_fault_of_our_own_is_an_internal_error_with_its_traceback(
    stock: type[Stock],
    counts: Callable[[], dict[str, int]],
    name: str,
    make: Callable[[Raises], wrapping.Wrapper],
    fault: Exception,
) -> None:
    wrapping.wrap(stock, name, make(raising(fault)))
    with pytest.raises(InternalError) as raised:
        call(stock, name)
    assert raised.value.__cause__ is fault
    assert fault.__traceback__ is not None
    message = str(raised.value)
    assert message.startswith(f"deepeyes-patch failed in its wrapper of Stock.{name}: {type(fault).__name__}")
    assert str(fault) in message
    assert "not of the request" in message
    # SGLang answers a ValueError with HTTP 400, and a client's `except ValueError` would hide it.
    assert not isinstance(raised.value, ValueError)
    assert counts() == {}, "it is no refusal"


@pytest.mark.parametrize(("name", "make"), WRAPPERS)
@pytest.mark.parametrize(
    "error",
    [
        DeepEyesPatchError("cannot start"),
        IncompatibleSGLangError("does not fit"),
        UnsupportedConfigError("mrope_section sums to 63"),
    ],
)
def test_what_is_raised_on_purpose_stays(
    stock: type[Stock],
    counts: Callable[[], dict[str, int]],
    name: str,
    make: Callable[[Raises], wrapping.Wrapper],
    error: Exception,
) -> None:
    wrapping.wrap(stock, name, make(raising(error)))
    with pytest.raises(type(error)) as raised:
        call(stock, name)
    assert raised.value is error
    assert raised.value.__cause__ is None
    assert counts() == {}


@pytest.mark.parametrize(("name", "make"), WRAPPERS)
def test_a_refusal_stays_and_is_counted_once(
    stock: type[Stock],
    counts: Callable[[], dict[str, int]],
    name: str,
    make: Callable[[Raises], wrapping.Wrapper],
) -> None:
    """Also where it leaves two of our wrappers, as from the loader through the outermost method."""
    refusal = RefusedRequest("length", "5 placeholders, and 4 are made")
    wrapping.wrap(stock, name, make(raising(refusal)))
    outer = type("Outer", (), {})

    def plain(self: Any) -> Any:
        return getattr(stock(), name)()

    async def coroutine(self: Any) -> Any:
        result = getattr(stock(), name)()
        return await result if inspect.iscoroutine(result) else result

    outer.plain, outer.coroutine = plain, coroutine  # type: ignore[attr-defined]
    wrapping.wrap(outer, name, lambda call: call.proceed())
    with pytest.raises(ValueError, match="5 placeholders") as raised:
        call(outer, name)
    assert raised.value is refusal
    assert counts() == {"refused:length": 1}


# --- exceptions of SGLang's --------------------------------------------------------------------------------


def passing(call: Call) -> Any:
    return call.proceed()


def reading(call: Call) -> Any:
    """Reads an argument, so that the call is bound."""
    call.arguments.get("prompt")
    return call.proceed()


async def awaiting(call: Call) -> Any:
    return await call.proceed()


def noting(call: Call) -> Any:
    async def later(loading: Any) -> Any:
        return await loading

    return later(call.proceed())


def reraising(call: Call) -> Any:
    try:
        return call.proceed()
    except RuntimeError:
        raise


@pytest.mark.parametrize(
    ("name", "wrapper"),
    [
        ("plain", passing),
        ("plain", reading),
        ("plain", reraising),
        ("coroutine", passing),
        ("coroutine", reading),
        ("coroutine", awaiting),
        ("coroutine", noting),
    ],
)
@pytest.mark.parametrize(
    "error", [ValueError("upstream's"), RuntimeError("CUDA"), asyncio.CancelledError(), KeyboardInterrupt()]
)
def test_an_exception_of_sglangs_stays_the_very_same_object(
    stock: type[Stock],
    counts: Callable[[], dict[str, int]],
    name: str,
    wrapper: wrapping.Wrapper,
    error: BaseException,
) -> None:
    wrapping.wrap(stock, name, wrapper)
    with pytest.raises(type(error)) as raised:
        call(stock, name, error)
    assert raised.value is error
    assert raised.value.__cause__ is None
    assert counts() == {}
    assert call(stock, name) == "stock"


@pytest.mark.parametrize("name", ["plain", "coroutine"])
def test_a_fault_while_we_handle_an_exception_of_sglangs(stock: type[Stock], name: str) -> None:
    async def handling_later(call: Call) -> Any:
        try:
            return await call.proceed()
        except RuntimeError:
            raise KeyError("ours")  # noqa: B904

    def handling(call: Call) -> Any:
        try:
            return call.proceed()
        except RuntimeError:
            raise KeyError("ours")  # noqa: B904

    theirs = RuntimeError("theirs")
    wrapping.wrap(stock, name, handling if name == "plain" else handling_later)
    with pytest.raises(InternalError, match="KeyError: 'ours'") as raised:
        call(stock, name, theirs)
    assert isinstance(raised.value.__cause__, KeyError)
    assert raised.value.__cause__.__context__ is theirs


def test_a_fault_passes_an_outer_wrapper_as_it_is(stock: type[Stock]) -> None:
    def broken(call: Call) -> Any:
        raise ValueError("ours")

    wrapping.wrap(stock, "plain", broken)
    wrapping.wrap(stock, "coroutine", awaiting)  # its function calls ``plain``
    with pytest.raises(InternalError, match=r"wrapper of Stock\.plain"):
        call(stock, "coroutine")


# --- arguments ---------------------------------------------------------------------------------------------


def test_a_call_that_does_not_fit_the_function_is_the_callers_mistake(stock: type[Stock]) -> None:
    wrapping.wrap(stock, "plain", reading)
    with pytest.raises(TypeError, match="unexpected"):
        stock().plain(unknown=1)  # type: ignore[call-arg]


def test_arguments_that_are_changed_are_handed_on() -> None:
    class Target:
        def method(self, first: int, /, *rest: int, only: int = 0, **options: int) -> Any:
            return first, rest, only, options

    def changing(call: Call) -> Any:
        assert call.get("only") == 5
        assert call.get("unknown") is None
        assert call.get("new") is None, "`get` looks into `kwargs` alone"
        assert sorted(call.values) == [1, 2, 3, 4, 5]
        call.arguments["first"] = 9
        return call.proceed()

    wrapping.wrap(Target, "method", changing)
    try:
        assert Target().method(1, 2, 3, new=4, only=5) == (9, (2, 3), 5, {"new": 4})
    finally:
        wrapping.restore_all()


def test_get_finds_what_a_release_collects_in_kwargs() -> None:
    class Target:
        def named(self, grid: Any = None, **kwargs: Any) -> Any: ...

        def collected(self, **kwargs: Any) -> Any: ...

    for name in ("named", "collected"):
        wrapping.wrap(Target, name, lambda call: (call.get("grid"), call.get("absent")))
    try:
        assert Target().named(grid=1) == Target().collected(grid=1) == (1, None)
    finally:
        wrapping.restore_all()


@pytest.mark.parametrize("fault", [ValueError("injected"), OSError("injected"), KeyError("injected")])
def test_a_refusal_that_cannot_be_counted_leaves_all_the_same(
    fault: Exception, stock: type[Stock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was lost: the client got the fault, and a ValueError as HTTP 400 with a text of its own."""
    monkeypatch.setattr(counters, "count_refusal", lambda refusal: raising(fault)())
    refusal = RefusedRequest("media", "no image")
    for name, make in WRAPPERS:
        owner = type("Stock", (Stock,), {})
        wrapping.wrap(owner, name, make(raising(refusal)))
        with pytest.raises(RefusedRequest) as caught:
            call(owner, name)
        assert caught.value is refusal


def test_a_reason_that_nobody_counts_is_a_fault(stock: type[Stock]) -> None:
    wrapping.wrap(stock, "plain", plain_before(lambda: raising(RefusedRequest("typo", "no image"))()))
    with pytest.raises(InternalError, match="'typo' is no reason for a refusal"):
        call(stock, "plain")
