"""With one of our own wrappers out of action a request is refused, not served wrong.

This stands for a release whose processor takes a path that no wrapper of ours covers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import deepeyes_patch
from deepeyes_patch.request import begin as ours
from tests.lab import processors
from tests.sglang import rollouts
from tests.sglang.rollouts import attempt, picture

IMAGES = [picture(448, 224), picture(448, 448)]


# The pool is where a scope could get lost; with retokenizing nothing of upstream's helps.
WAYS = ("default", "pool, retokenize")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Install when the test has changed what it changes; undone before those changes are."""
    processors.processor_class()
    yield lambda: deepeyes_patch.install(["processor"])
    deepeyes_patch.uninstall()


def passing(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs)


def uses_artifacts(processor: Any) -> bool:
    return bool(getattr(processor, "uses_media_artifacts_without_cache", False))


# By whether the artifact path is taken: without these, re-tokenized or unexpanded ids come out.
NEEDED = {False: ("_process_and_collect_mm_items",), True: ("build_input_ids",)}
SEAMS = ["load_mm_data", "process_and_combine_mm_data", "_process_and_collect_mm_items", "build_input_ids"]


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("shape", ["expanded", "drifted", "short"])
def test_one_inner_wrapper_disabled(
    seam: str,
    shape: str,
    folder: Path,
    processor: Any,
    install: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expanded = rollouts.expanded(folder, IMAGES)
    request = {
        "expanded": expanded,
        "drifted": rollouts.drifted(folder, expanded, "between"),
        "short": rollouts.drifted(folder, rollouts.short(folder, IMAGES), "between"),
    }[shape]
    if not hasattr(processors.processor_class(), seam):
        pytest.skip(f"this release has no {seam}")
    monkeypatch.setitem(ours._WRAPPERS, seam, passing)
    install()
    on_the_way = (seam == "build_input_ids") == uses_artifacts(processor)
    outcome = attempt(processor, request)
    if isinstance(outcome, Exception):
        assert on_the_way, "a wrapper that this path does not use was missed"
    else:
        # A wrapper that is not needed here, or not for this request: exact all the same.
        rollouts.assert_exact(folder, outcome, request)
    if shape == "drifted" and seam in NEEDED[uses_artifacts(processor)]:
        assert isinstance(outcome, Exception), "this wrapper was thought to be needed"


@pytest.mark.parametrize("what", ["input_ids", "padded_input_ids", "offsets", "mrope_positions", "mm_items"])
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
        assert isinstance(outcome, ValueError), f"{what} was spoilt and the request was served"
        assert "deepeyes-patch refuses this request" in str(outcome) or "came with them" in str(outcome)
    else:
        rollouts.assert_exact(folder, outcome, request)


def spoil(result: Any, what: str) -> bool:
    """Change one part of a result; ``False`` where this release's result has no such part."""
    get = result.get if isinstance(result, dict) else lambda name: getattr(result, name, None)
    if get(what if what != "offsets" else "mm_items") is None:
        return False
    if what in ("input_ids", "padded_input_ids"):
        get(what)[1] += 1
    elif what == "offsets":
        item = get("mm_items")[0]
        item.offsets = [(first + 1, last + 1) for first, last in item.offsets]
    elif what == "mm_items":
        get("mm_items").pop()
    else:
        first, last = get("mm_items")[0].offsets[0]
        get(what)[1:, first : last + 1] = get(what)[0, first : last + 1]
    return True
