"""No result leaves the tokenizer manager without the last look, whatever path SGLang took.

First a made-up second outermost method (`tests.sglang.second_method`), which no other wrapper of ours covers.
Then each of our wrappers is removed behind our back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import deepeyes_patch
from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.seams import table, wrapping
from tests.lab import managers, models, reference
from tests.sglang import rollouts, second_method
from tests.sglang.records import counts
from tests.sglang.rollouts import Request, picture
from tests.sglang.test_admit import generate

IMAGES = [picture(448, 224), picture(448, 448)]


@pytest.fixture
def kind() -> models.Kind:
    return "qwen3_vl"


def outcome(manager: Any, request: Request, expanded: int | None = None) -> Any:
    """What the scheduler would get, or the exception."""
    sent = generate(input_ids=list(request.ids), image_data=list(request.images))
    if expanded is not None:
        setattr(sent, second_method.FIELD, expanded)
    try:
        return managers.tokenize(manager, sent)
    except Exception as error:
        return error


def faults(folder: Path, tokenized: Any, request: Request) -> list[str]:
    """What of a served request is not the caller's."""
    inputs = tokenized.mm_inputs
    get = inputs.get if isinstance(inputs, dict) else lambda name: getattr(inputs, name, None)
    positions, delta = reference.positions(
        folder, request.expected_ids, rollouts.image_grids(folder, request.images)
    )
    offsets = [tuple(pair) for item in get("mm_items") for pair in item.offsets]
    right = {
        "ids": list(tokenized.input_ids) == request.expected_ids,
        "offsets": offsets == rollouts.spans(folder, request.expected_ids),
        "positions": torch.equal(get("mrope_positions").cpu().long(), positions),
        "delta": int(torch.as_tensor(get("mrope_position_delta")).flatten()[0]) == delta,
    }
    return [name for name, holds in right.items() if not holds]


# --- a second outermost method ------------------------------------------------------------------------


def _without_a_pad(folder: Path) -> Request:
    request = rollouts.expanded(folder, IMAGES)
    first = rollouts.spans(folder, request.ids)[0][0]
    return Request(request.ids[:first] + request.ids[first + 1 :], request.images, [])


def _with_a_pad_more(folder: Path) -> Request:
    request = rollouts.expanded(folder, IMAGES)
    first = rollouts.spans(folder, request.ids)[1][0]
    return Request([*request.ids[:first], request.ids[first], *request.ids[first:]], request.images, [])


def _with_a_stray(folder: Path) -> Request:
    request = rollouts.expanded(folder, IMAGES)
    return Request([*request.ids, rollouts.vision(folder).image], request.images, [])


def _with_an_image_less(folder: Path) -> Request:
    request = rollouts.expanded(folder, IMAGES)
    return Request(request.ids, request.images[:1], [])


def _with_images_swapped(folder: Path) -> Request:
    request = rollouts.expanded(folder, IMAGES)
    return Request(request.ids, request.images[::-1], [])


def _with_a_foreign_id(folder: Path) -> Request:
    request = rollouts.expanded(folder, IMAGES)
    return Request([*request.ids, 10**7], request.images, [])


ALL = "all"
# Name -> (the request, how many leading ids it calls expanded, whether it is served)
REQUESTS: dict[str, tuple[Callable[[Path], Request], str | int | None, bool]] = {
    "short": (lambda f: rollouts.short(f, IMAGES), None, True),
    "short, drifted": (lambda f: rollouts.drifted(f, rollouts.short(f, IMAGES), "between"), None, True),
    "expanded": (lambda f: rollouts.expanded(f, IMAGES), ALL, True),
    "expanded, drifted": (lambda f: rollouts.drifted(f, rollouts.expanded(f, IMAGES), "after"), ALL, True),
    "expanded, and the field says short": (lambda f: rollouts.expanded(f, IMAGES), None, False),
    "one pad short": (_without_a_pad, ALL, False),
    "one pad more": (_with_a_pad_more, ALL, False),
    "a stray pad": (_with_a_stray, ALL, False),
    "an image less": (_with_an_image_less, ALL, False),
    "images swapped": (_with_images_swapped, ALL, False),
    "an id beyond the vocabulary": (_with_a_foreign_id, ALL, False),
}


@pytest.fixture
def second(folder: Path) -> Iterator[Callable[[], Any]]:
    """Makes a manager that calls the second method; stock if nothing is installed."""
    made: list[Any] = []

    def build() -> Any:
        manager = managers.manager(folder)
        second_method.add(manager, folder)
        made.append(manager)
        return manager

    yield build
    for manager in made:
        second_method.remove(manager)


@pytest.mark.parametrize("name", REQUESTS)
def test_second_method(name: str, folder: Path, second: Callable[[], Any], patched: None) -> None:
    make, expanded, served = REQUESTS[name]
    request = make(folder)
    manager, before = second(), counts()
    result = outcome(manager, request, len(request.ids) if expanded == ALL else expanded)  # type: ignore[arg-type]
    if served:
        assert not isinstance(result, Exception), result
        assert faults(folder, result, request) == []
    else:
        assert isinstance(result, RefusedRequest), result
    after = counts()
    assert after["unknown_path"] == before.get("unknown_path", 0) + 1
    assert after.get("restored", 0) == before.get("restored", 0) + served


def test_stock_serves_wrong_ids(folder: Path, second: Callable[[], Any]) -> None:
    request = _without_a_pad(folder)
    result = outcome(second(), request, len(request.ids))
    assert not isinstance(result, Exception), result
    assert list(result.input_ids) == request.ids


def test_media_that_get_lost_are_refused(
    folder: Path, patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = managers.manager(folder)

    async def losing(*args: Any, **kwargs: Any) -> None:
        return None

    monkeypatch.setattr(manager.mm_processor, "process_mm_data_async", losing)
    if hasattr(manager, "mm_data_processor"):
        monkeypatch.setattr(manager.mm_data_processor, "_proc_async", losing)
    result = outcome(manager, rollouts.expanded(folder, IMAGES))
    assert isinstance(result, RefusedRequest)
    assert "without its images" in str(result)


# --- our wrappers, removed behind our back ------------------------------------------------------------

ROWS = sorted({seam.name for seam in table.SEAMS if seam.repair == "processor" and seam.wrapper})
# They run when a server starts, or belong to encoder disaggregation; without the tokenizer manager's method
# nothing looks at requests without media, and the processor's own last look is left.
SHAPES: dict[str, Callable[[Path], Request]] = {
    "expanded": lambda folder: rollouts.expanded(folder, IMAGES),
    "drifted": lambda folder: rollouts.drifted(folder, rollouts.expanded(folder, IMAGES), "between"),
    "short": lambda folder: rollouts.drifted(folder, rollouts.short(folder, IMAGES), "between"),
    "one pad short": _without_a_pad,
}


@pytest.mark.parametrize("name", ROWS)
def test_a_wrapper_removed(name: str, folder: Path, patched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = managers.manager(folder)
    removed = 0
    for placement in wrapping._placements:
        if placement.name == name and placement.in_force():
            original = placement.original if not placement.inherited else placement.wrapper.__wrapped__
            monkeypatch.setattr(placement.owner, name, original)
            removed += 1
    if not removed:
        pytest.skip(f"nothing of ours is on {name} in this release")
    for shape, make in SHAPES.items():
        request = make(folder)
        result = outcome(manager, request)
        if isinstance(result, Exception):
            continue
        assert request.expected_ids, f"{shape} was served"
        assert faults(folder, result, request) == [], shape


def test_the_manager_has_a_wrapper(patched: None) -> None:
    """Else the tests above would show nothing."""
    module = __import__(managers.MODULE, fromlist=["TokenizerManager"])
    function = inspect.getattr_static(module.TokenizerManager, "_tokenize_one_request")
    assert isinstance(function, wrapping.SeamWrapper)
    assert deepeyes_patch.status()["processor"].startswith("patched")
