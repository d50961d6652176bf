"""With one of our own wrappers out of action a request is refused, not served wrong.

This stands for a release whose processor takes a path that no wrapper of ours covers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import deepeyes_patch
from deepeyes_patch.errors import InternalError, RefusedRequest
from tests.lab import processors
from tests.sglang import disabled, rollouts
from tests.sglang.rollouts import attempt, picture

IMAGES = [picture(448, 224), picture(448, 448)]

# The pool is where a scope could get lost; with retokenizing nothing of upstream's helps.
POOL = "pool, retokenize"
WAYS = ("default", POOL)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Install when the test has changed what it changes; undone before those changes are."""
    processors.processor_class()
    yield lambda: deepeyes_patch.install(["processor"])
    deepeyes_patch.uninstall()


SHAPES: dict[str, Callable[[Path], rollouts.Request]] = {
    "expanded": lambda folder: rollouts.expanded(folder, IMAGES),
    "drifted": lambda folder: rollouts.drifted(folder, rollouts.expanded(folder, IMAGES), "between"),
    "short": lambda folder: rollouts.drifted(folder, rollouts.short(folder, IMAGES), "between"),
}
# By the wrapper in ``deepeyes_patch.request`` that is left out.
LEFT_OUT = {
    "load_media": ("load_mm_data", "fast_load_mm_data", "legacy_load_mm_data"),
    "combine": ("process_and_combine_mm_data",),
    "collect_items": ("_process_and_collect_mm_items",),
    "build_ids": ("build_input_ids",),
}


def due(wrapper: str, shape: str, artifacts: bool, way: str, drops_surplus: bool) -> str:
    """What must come of a request where one wrapper is missing: ``exact``, ``refused`` or ``stock's error``.

    Parameters
    ----------
    artifacts:
        The processor takes the artifact path: ``build_input_ids`` alone makes ids there. It wants one
        placeholder per image, and fails by itself on an expanded image.
    drops_surplus:
        The loader ignores placeholders for which no image is left (before 0.5.8). Later loaders fail, or
        never come back.
    """
    if artifacts or wrapper == "build_ids":
        needed = artifacts and wrapper == "build_ids" and shape != "short"
        return "stock's error" if needed else "exact"
    if wrapper == "collect_items":  # the ids of the HF processor go through
        return "refused"
    if wrapper == "combine":  # it takes the scope to the worker thread
        return "refused" if way == POOL else "exact"
    if shape != "short" and not drops_surplus:
        return "stock's error"
    # The loader's result carries the scope to the worker thread.
    return "refused" if way == POOL else "exact"


@pytest.mark.parametrize("wrapper", LEFT_OUT)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_wrapper_left_out(
    wrapper: str,
    shape: str,
    folder: Path,
    processor: Any,
    install: Callable[[], None],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cls = processors.processor_class()
    if not any(hasattr(cls, name) for name in LEFT_OUT[wrapper]):
        pytest.skip(f"this release has no {LEFT_OUT[wrapper][0]}")
    disabled.leave_out(monkeypatch, *LEFT_OUT[wrapper])
    install()
    sent = SHAPES[shape](folder)
    outcome = attempt(processor, sent, seconds=3)
    wanted = due(
        wrapper,
        shape,
        artifacts=bool(getattr(processor, "uses_media_artifacts_without_cache", False)),
        way=request.node.callspec.params["processor"],
        drops_surplus=not hasattr(cls, "fast_load_mm_data"),
    )
    if wanted == "exact":
        rollouts.assert_exact(folder, outcome, sent)
    elif wanted == "refused":
        assert isinstance(outcome, RefusedRequest)
        assert outcome.reason == "inexact"
        assert "the input_ids that SGLang" in str(outcome)
    else:
        assert isinstance(outcome, Exception)
        assert not isinstance(outcome, (RefusedRequest, InternalError)), outcome


SPOILT_PART = {
    "offsets": "image offsets",
    "padding": "padded_input_ids",
    "mrope_positions": "M-RoPE positions",
}
# Where it is, if it is no part by itself.
HELD_IN = {"offsets": "mm_items", "padding": "padded_input_ids"}


@pytest.mark.parametrize(
    "what", ["input_ids", "padded_input_ids", "padding", "offsets", "mrope_positions", "mm_items"]
)
def test_a_wrong_result_is_refused(
    what: str,
    folder: Path,
    processor: Any,
    install: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each part that the last look looks at, spoilt after upstream and our inner wrappers made it."""
    cls = processors.processor_class()
    original = cls.process_mm_data_async
    spoilt = []

    @functools.wraps(original)
    async def spoiling(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        spoilt.append(spoil(result, what))
        return result

    monkeypatch.setattr(cls, "process_mm_data_async", spoiling)
    install()
    request = rollouts.expanded(folder, IMAGES)
    outcome = attempt(processor, request)
    assert len(spoilt) == 1
    if spoilt[0]:
        assert isinstance(outcome, RefusedRequest), f"{what} was spoilt and the request was served"
        if what == "mm_items":
            assert re.search(r"2 image span\(s\) .*, and [01] image\(s\) came with them", str(outcome))
        else:
            assert outcome.reason == "inexact"
            assert f"the {SPOILT_PART.get(what, what)} that SGLang" in str(outcome)
    else:
        rollouts.assert_exact(folder, outcome, request)


def spoil(result: Any, what: str) -> bool:
    """Change one part of a result; ``False`` where this release's result has no such part."""
    get = result.get if isinstance(result, dict) else lambda name: getattr(result, name, None)
    if get(HELD_IN.get(what, what)) is None:
        return False
    if what in ("input_ids", "padded_input_ids"):
        get(what)[1] += 1
    elif what == "padding":  # at the place of an image
        get("padded_input_ids")[get("mm_items")[0].offsets[0][0]] += 1
    elif what == "offsets":
        item = get("mm_items")[0]
        item.offsets = [(first + 1, last + 1) for first, last in item.offsets]
    elif what == "mm_items":
        get("mm_items").pop()
    else:
        first, last = get("mm_items")[0].offsets[0]
        get(what)[1:, first : last + 1] = get(what)[0, first : last + 1]
    return True
