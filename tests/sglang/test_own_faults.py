"""A fault in our own code is never the client's: HTTP 500 with its traceback, on every path.

Each path is walked once under a profiler, to see which of our functions run on it. Then each of these is made
to raise, one after the other, and the request is sent again.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from unittest import mock

import pytest
import torch

import deepeyes_patch
from deepeyes_patch.errors import InternalError
from deepeyes_patch.request import media_errors
from deepeyes_patch.seams import families
from tests.lab import managers, models, processors
from tests.sglang import films, rollouts, test_disaggregation, ways
from tests.sglang.rollouts import assert_exact, picture
from tests.sglang.test_preprocessed import processor_output
from tests.sglang.test_videos import tells_times

IMAGES = [picture(448, 224)]
# Worker threads and re-tokenizing, where a release has them.
WAY = ways.ways()[-1]
LAYERS = ("deepeyes_patch.request", "deepeyes_patch.ids")
ALONE = ("deepeyes_patch.seams.families",)

Ask = Callable[[Path, Any], Any]


def answer(processor: Any, prompt: Any, images: Any, videos: Any = None) -> Any:
    """What SGLang's method returns, as it is: the harness reads results with a function of ours."""
    return processors.run(processors.answer_async(processor, prompt, images, videos))


def expanded(folder: Path, processor: Any) -> Any:
    request = rollouts.drifted(folder, rollouts.expanded(folder, IMAGES), "after")
    return answer(processor, list(request.ids), IMAGES)


def short(folder: Path, processor: Any) -> Any:
    request = rollouts.short(folder, IMAGES)
    return answer(processor, list(request.ids), IMAGES)


def text(folder: Path, processor: Any) -> Any:
    return answer(processor, rollouts.conversation(1), IMAGES)


def preprocessed(folder: Path, processor: Any) -> Any:
    ids = rollouts.expanded(folder, IMAGES).ids
    item = processor_output(folder, IMAGES) | {"offsets": rollouts.spans(folder, ids), "hash": 5}
    return answer(processor, list(ids), [item])


def video(folder: Path, processor: Any) -> Any:
    scene = films.SCENES["one video"]
    ids = rollouts.tokenize(folder, scene.text)
    return answer(processor, ids, None, [clip.data for clip in scene.clips])


def wrong_length(folder: Path, processor: Any) -> Any:
    ids = rollouts.expanded(folder, IMAGES).ids
    first = rollouts.spans(folder, ids)[0][0]
    return answer(processor, ids[:first] + ids[first + 1 :], IMAGES)


def stray(folder: Path, processor: Any) -> Any:
    request = rollouts.expanded(folder, IMAGES)
    return answer(processor, [*request.ids, rollouts.vision(folder).image], IMAGES)


def no_image(folder: Path, processor: Any) -> Any:
    return answer(processor, rollouts.short(folder, IMAGES).ids, [bytes(range(256))])


def admitted(folder: Path, processor: Any) -> Any:
    io_struct = importlib.import_module("sglang.srt.managers.io_struct")
    for fields in (
        {"input_ids": rollouts.short(folder, IMAGES).ids, "image_data": list(IMAGES)},
        {"input_ids": rollouts.tokenize(folder, "Look: ")},
    ):
        request = io_struct.GenerateReqInput(sampling_params={"max_new_tokens": 2}, **fields)
        managers.tokenize(managers.manager(folder), request)


def inexact(folder: Path, processor: Any) -> Any:
    """SGLang makes other positions, behind the back of our wrapper."""
    module = importlib.import_module(processors.MODULE)

    def zeros(*, input_ids: Any, **rest: Any) -> Any:
        return torch.zeros(3, *input_ids.shape, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)

    ids = list(rollouts.expanded(folder, IMAGES).ids)
    with mock.patch.object(module.MRotaryEmbedding, "get_rope_index", staticmethod(zeros)):
        return answer(processor, ids, IMAGES)


def unserved(folder: Path, processor: Any) -> Any:
    """The tokenizer manager asks a class that is not served: the same processor, said to be none of ours."""
    ids = rollouts.short(folder, IMAGES).ids
    with mock.patch.object(processor, families._MODEL, None, create=True):
        return managers.process(processor, folder, ids, IMAGES, seconds=20)


def embedded(folder: Path, processor: Any) -> Any:
    return test_disaggregation.build(folder, processor, _embedded_ids(folder))


def received_by_tokenizer(folder: Path, processor: Any) -> Any:
    return test_disaggregation.taken(folder, processor, _embedded_ids(folder))


def _embedded_ids(folder: Path) -> list[int]:
    return list(rollouts.expanded(folder, test_disaggregation.IMAGES).ids)


ENCODERS = hasattr(processors.processor_class(), "get_mm_data")
# Name -> what is asked, of which model. Of a release with an artifact path only one of the two takes it.
PATHS: dict[str, tuple[Ask, models.Kind]] = {
    "expanded": (expanded, "qwen2_5_vl"),
    "expanded, Qwen3-VL": (expanded, "qwen3_vl"),
    "short": (short, "qwen2_5_vl"),
    "text": (text, "qwen2_5_vl"),
    "preprocessed": (preprocessed, "qwen2_5_vl"),
    **({"video": (video, "qwen3_vl"), "video, Qwen2.5-VL": (video, "qwen2_5_vl")} if tells_times() else {}),
    "refused": (wrong_length, "qwen2_5_vl"),
    "stray placeholder": (stray, "qwen2_5_vl"),
    "no image": (no_image, "qwen2_5_vl"),
    "admitted": (admitted, "qwen2_5_vl"),
    "inexact": (inexact, "qwen2_5_vl"),
    "unserved": (unserved, "qwen2_5_vl"),
    **({"embedded": (embedded, "qwen2_5_vl")} if ENCODERS else {}),
    **({"received by the tokenizer": (received_by_tokenizer, "qwen2_5_vl")} if ENCODERS else {}),
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ways.variables(WAY).items():
        monkeypatch.setenv(name, value)
    # Before 0.5.20 frames are pinned for a GPU, and to 0.5.16 embeddings are joined on one.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *args, **kwargs: self)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)


@pytest.fixture
def installed() -> Iterator[None]:
    deepeyes_patch.install(["processor", *(["video"] if tells_times() else [])])
    try:
        yield
    finally:
        deepeyes_patch.uninstall()


# --- our functions, and what makes them raise -----------------------------------------------------------


@cache
def ours() -> dict[CodeType, FunctionType]:
    """All functions and methods of the modules that serve a request, by their code."""
    names = [
        f"{layer}.{module.name}"
        for layer in LAYERS
        for module in pkgutil.iter_modules(importlib.import_module(layer).__path__)
    ]
    found: dict[CodeType, FunctionType] = {}
    for name in [*names, *ALONE]:
        module = importlib.import_module(name)
        members = [value for value in vars(module).values() if getattr(value, "__module__", "") == name]
        for value in members:
            inside = list(vars(value).values()) if isinstance(value, type) else [value]
            for member in inside:
                member = getattr(member, "fget", None) or getattr(member, "__func__", member)
                function = inspect.unwrap(member) if callable(member) else None
                if isinstance(function, FunctionType) and function.__code__.co_filename == module.__file__:
                    found[function.__code__] = function
    return found


def run_on(ask: Callable[[], Any]) -> list[FunctionType]:
    """Those of our functions that run while this is asked, on any thread."""
    seen: set[CodeType] = set()
    known = ours()

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in known:
            seen.add(frame.f_code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        with contextlib.suppress(deepeyes_patch.RefusedRequest):
            ask()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [function for code, function in known.items() if code in seen]


def _plain(*args: Any, **kwargs: Any) -> Any:
    raise ERROR("injected")  # noqa: F821


async def _coroutine(*args: Any, **kwargs: Any) -> Any:
    raise ERROR("injected")  # noqa: F821


def _generator(*args: Any, **kwargs: Any) -> Any:
    raise ERROR("injected")  # noqa: F821
    yield


@contextlib.contextmanager
def broken(function: FunctionType, error: type[Exception]) -> Iterator[None]:
    """While a function raises, whoever holds it and under whatever name."""
    code = function.__code__
    assert not code.co_freevars, function
    stub = _plain
    if inspect.iscoroutinefunction(function):
        stub = _coroutine
    elif inspect.isgeneratorfunction(function):
        stub = _generator
    names = tuple(error.__name__ if name == "ERROR" else name for name in stub.__code__.co_names)
    function.__code__ = stub.__code__.replace(co_names=names)
    try:
        yield
    finally:
        function.__code__ = code


def is_fault_of_ours(outcome: Any, error: type[Exception]) -> bool:
    """Whether an exception is ours, and tells where it came from."""
    return isinstance(outcome, InternalError) and any(
        type(cause) is error and cause.args == ("injected",) and cause.__traceback__ is not None
        for cause in media_errors.causes(outcome)
    )


def outcome_of(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        return error


# --- the processor and the tokenizer manager ------------------------------------------------------------

# SGLang takes any error here for a failure of the encoder. What the wrapper itself raises is one to it.
OUTERMOST = {"received by the tokenizer": ("process_embeddings",)}


@pytest.mark.parametrize("name", PATHS)
def test_it_is_an_internal_error(name: str, installed: None) -> None:
    ask, kind = PATHS[name]
    folder = models.ensure(kind)
    if ask in (admitted, unserved):
        managers.manager(folder)  # what constructs it is no part of a request
    fresh = new_processor(folder)  # whose threads begin under the profiler
    functions = run_on(lambda: ask(folder, fresh))
    processor = new_processor(folder)
    good = rollouts.expanded(folder, IMAGES)
    wrong: dict[str, str] = {}
    for function, error in itertools.product(functions, (ValueError, KeyError)):
        with broken(function, error):
            outcome = outcome_of(lambda: ask(folder, processor))
        place = f"{function.__module__}.{function.__qualname__}"
        outermost = function.__name__ in OUTERMOST.get(name, ())
        if not is_fault_of_ours(outcome, error) and not (outermost and outcome is None):
            wrong[f"{error.__name__} in {place}"] = repr(outcome)[:300]
        after = outcome_of(lambda: processors.process(processor, list(good.ids), IMAGES))
        if isinstance(after, Exception):
            wrong[f"after {place}"] = repr(after)[:300]
        else:
            assert_exact(folder, after, good)
    assert wrong == {}
    assert len(functions) > 2, [function.__qualname__ for function in functions]


def new_processor(folder: Path) -> Any:
    workers = {"mm_processor_worker_num": 2} if "pool" in WAY else {}
    return processors.build(folder, **workers)


# --- the scheduler's loop -------------------------------------------------------------------------------


@pytest.mark.skipif(not ENCODERS, reason="this release has no encoder disaggregation")
def test_in_the_scheduler_the_request_fails_and_the_loop_lives(installed: None) -> None:
    folder = models.ensure("qwen2_5_vl")
    processor = new_processor(folder)

    def wait() -> Any:
        return test_disaggregation.waited(folder, processor, _embedded_ids(folder))

    functions = run_on(wait)
    assert {"receive", "process_embeddings", "verify"} <= {function.__name__ for function in functions}
    wrong: dict[str, Any] = {}
    for function in functions:
        with broken(function, ValueError):
            waiting = wait()
        place = f"{function.__module__}.{function.__qualname__}"
        if function.__name__ == "receive":  # the wrapper itself; nothing of ours is around it
            failed = is_fault_of_ours(waiting.error, ValueError)
        else:
            # SGLang fails it by itself from 0.5.17 on, without a status: HTTP 500.
            failed = waiting.error is None and waiting.status.name == "FAIL"
            failed &= waiting.error_code in (None, 500) and "deepeyes-patch failed" in waiting.error_msg
        if not failed:
            wrong[place] = waiting.error or (waiting.status, waiting.error_code, waiting.error_msg)
        after = wait()
        if after.status.name != "SUCCESS":
            wrong[f"after {place}"] = after.error or after.error_msg
    assert wrong == {}
