"""Wrappers: put on once, known again below other packages' wrappers, taken off without a trace."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import wrapt

from deepeyes_patch.seams import wrapping
from deepeyes_patch.seams.wrapping import Call


class Base:
    def inherited(self, a: int, b: int = 2) -> tuple[int, int]:
        return a, b


@pytest.fixture
def target() -> Iterator[type[Any]]:
    """A class made for the test, so that nothing is left on it afterwards."""

    class Target(Base):
        def method(self, a: int, b: int = 2) -> tuple[int, int]:
            return a, b

        async def later(self, a: int) -> int:
            return a

        @staticmethod
        def static(a: int) -> int:
            return a

        @classmethod
        def of_class(cls, a: int) -> tuple[str, int]:
            return cls.__name__, a

    yield Target
    wrapping._placements.clear()


calls: list[tuple[Any, dict[str, Any]]] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def recording(call: Call) -> Any:
    """A wrapper of ours: it finds its arguments by name, and calls through."""
    calls.append((call.instance, dict(call.arguments)))
    return call.proceed()


def test_a_method_is_wrapped_once(target: type[Any]) -> None:
    wrapping.wrap(target, "method", recording)
    wrapping.wrap(target, "method", recording)
    instance = target()
    assert instance.method(1, b=3) == (1, 3)
    assert calls == [(instance, {"a": 1, "b": 3})]


def test_kinds_of_functions(target: type[Any]) -> None:
    for name in ("later", "static", "of_class"):
        wrapping.wrap(target, name, recording)
    assert asyncio.run(target().later(1)) == 1
    assert target.static(2) == target().static(2) == 2
    assert target.of_class(3) == target().of_class(3) == ("Target", 3)
    assert [arguments for _, arguments in calls] == [{"a": 1}, {"a": 2}, {"a": 2}, {"a": 3}, {"a": 3}]
    assert inspect.iscoroutinefunction(target.later)
    assert not inspect.iscoroutinefunction(target.static)


def test_a_module_function() -> None:
    module = types.ModuleType("a_module")

    def function(a: int) -> int:
        return a

    module.function = function  # type: ignore[attr-defined]
    wrapping.wrap(module, "function", recording)
    assert module.function(4) == 4
    assert calls == [(None, {"a": 4})]
    wrapping.restore_all()
    assert module.function is function


def test_arguments_are_named_when_the_class_is_called(target: type[Any]) -> None:
    # So do subclasses that spell their base out, and other packages that kept ``Class.method``.
    wrapping.wrap(target, "method", recording)
    instance = target()
    assert target.method(instance, 1, b=3) == (1, 3)
    assert calls == [(instance, {"a": 1, "b": 3})]


def test_a_missing_argument_is_a_type_error(target: type[Any]) -> None:
    wrapping.wrap(target, "method", recording)
    with pytest.raises(TypeError, match="'a'"):
        target().method()


def test_an_inherited_function_is_wrapped_on_the_class_alone(target: type[Any]) -> None:
    wrapping.wrap(target, "inherited", recording)
    assert Base().inherited(1) == (1, 2)
    assert calls == []
    assert target().inherited(1) == (1, 2)
    assert len(calls) == 1
    assert wrapping.displaced() == []


def test_wrapping_an_absent_name_is_an_error(target: type[Any]) -> None:
    with pytest.raises(AttributeError):
        wrapping.wrap(target, "absent", recording)
    assert wrapping._placements == []


def test_restore_puts_back_the_very_same_objects(target: type[Any]) -> None:
    before = dict(vars(target))
    for name in ("method", "later", "static", "of_class", "inherited"):
        wrapping.wrap(target, name, recording)
    wrapping.restore_all()
    assert dict(vars(target)) == before
    assert all(vars(target)[name] is before[name] for name in ("method", "later", "static", "of_class"))
    wrapping.restore_all()  # nothing left to do
    wrapping.wrap(target, "method", recording)  # and wrapping is possible again
    target().method(1)
    assert len(calls) == 1


# --- other packages ---------------------------------------------------------------------------------


def on_top_by_functools(target: type[Any]) -> None:
    original = target.method

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    target.method = method


def on_top_by_functools_twice(target: type[Any]) -> None:
    on_top_by_functools(target)
    on_top_by_functools(target)


def on_top_by_wrapt(target: type[Any]) -> None:
    def passing(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(target, "method", passing)


ON_TOP = [on_top_by_functools, on_top_by_functools_twice, on_top_by_wrapt]


@pytest.mark.parametrize("put_on_top", ON_TOP)
def test_a_wrapper_on_top_of_ours_displaces_nothing(
    target: type[Any], put_on_top: Callable[[type[Any]], None]
) -> None:
    wrapping.wrap(target, "method", recording)
    put_on_top(target)
    assert target().method(1) == (1, 2)
    assert len(calls) == 1
    assert wrapping.displaced() == []


@pytest.mark.parametrize("put_on_top", ON_TOP)
def test_ours_is_not_wrapped_again_below_another(
    target: type[Any], put_on_top: Callable[[type[Any]], None]
) -> None:
    # Twice applied, the inner wrapper would take the outer one's work for the caller's.
    wrapping.wrap(target, "method", recording)
    put_on_top(target)
    wrapping.wrap(target, "method", recording)
    assert target().method(1) == (1, 2)
    assert len(calls) == 1


@pytest.mark.parametrize("put_on_top", ON_TOP)
def test_restoring_below_another_wrapper_is_refused_and_changes_nothing(
    target: type[Any], put_on_top: Callable[[type[Any]], None]
) -> None:
    wrapping.wrap(target, "later", recording)
    wrapping.wrap(target, "method", recording)
    put_on_top(target)
    before = dict(vars(target))
    with pytest.raises(RuntimeError, match=r"Target\.method since; undo that first"):
        wrapping.restore_all()
    assert dict(vars(target)) == before
    target().method(1)
    asyncio.run(target().later(1))
    assert len(calls) == 2


def test_a_wrapper_below_ours_is_kept(target: type[Any]) -> None:
    on_top_by_wrapt(target)
    foreign = vars(target)["method"]
    wrapping.wrap(target, "method", recording)
    assert target().method(1) == (1, 2)
    assert len(calls) == 1
    assert wrapping.displaced() == []
    wrapping.restore_all()
    assert vars(target)["method"] is foreign


def test_a_replaced_method_is_displaced(target: type[Any]) -> None:
    wrapping.wrap(target, "method", recording)
    wrapping.wrap(target, "later", recording)

    def replacement(self: Any, a: int, b: int = 2) -> str:
        return "theirs"

    target.method = replacement
    assert wrapping.displaced() == [("Target.method", replacement)]


def test_a_deleted_method_is_displaced(target: type[Any]) -> None:
    wrapping.wrap(target, "method", recording)
    del target.method
    assert wrapping.displaced() == [("Target.method", None)]


def test_the_original_put_back_by_another_package_is_displaced(target: type[Any]) -> None:
    # wrapt's wrappers compare equal to what they wrap; they are not the same.
    original = vars(target)["method"]
    wrapping.wrap(target, "method", recording)
    target.method = original
    assert wrapping.displaced() == [("Target.method", original)]


def test_a_copy_of_the_wrapped_function_displaces_ours(target: type[Any]) -> None:
    # A wrapper that somebody made around the function before ours was put there.
    original = target.method
    wrapping.wrap(target, "method", recording)
    target.method = functools.wraps(original)(lambda self, *args: original(self, *args))
    assert [name for name, _ in wrapping.displaced()] == ["Target.method"]


def doubling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def doubled(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs) * 2

    return doubled


def test_a_traceable_wrapper_is_a_plain_function(target: type[Any]) -> None:
    original = vars(target)["method"]
    wrapping.wrap_traceably(target, "method", doubling)
    wrapping.wrap_traceably(target, "method", doubling)
    assert isinstance(vars(target)["method"], types.FunctionType)
    assert target().method(1) == (1, 2, 1, 2)
    assert inspect.signature(target.method) == inspect.signature(original)
    assert wrapping.displaced() == []
    wrapping.restore_all()
    assert vars(target)["method"] is original


def test_a_replaced_traceable_wrapper_is_noticed(target: type[Any]) -> None:
    wrapping.wrap_traceably(target, "method", doubling)
    ours = vars(target)["method"]
    target.method = functools.wraps(ours)(lambda self, a, b=2: ours(self, a, b))
    assert wrapping.displaced() == []  # wrapped by another package
    target.method = foreign = lambda self, a, b=2: None
    assert wrapping.displaced() == [("Target.method", foreign)]
    with pytest.raises(RuntimeError, match=r"Target\.method"):
        wrapping.restore_all()


def test_modules_that_imported_our_wrapper_by_name_get_the_original_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After uninstall() a model imported meanwhile went on with our wrapper."""
    home, importer = types.ModuleType("sglang.home"), types.ModuleType("sglang.importer")
    for module in (home, importer):
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def function(a: int) -> int:
        return a

    home.function = function  # type: ignore[attr-defined]
    wrapping.wrap(home, "function", recording)
    importer.function = home.function  # type: ignore[attr-defined]
    wrapping.restore_all()
    assert home.function is function
    assert importer.function is function


def test_functions_that_wrap_each_other_are_looked_at_once(target: type[Any]) -> None:
    """This never ended."""
    wrapping.wrap(target, "method", recording)

    def circle(self: Any) -> None: ...

    circle.__wrapped__ = circle  # type: ignore[attr-defined]
    target.method = circle
    assert wrapping.displaced() == [("Target.method", circle)]
