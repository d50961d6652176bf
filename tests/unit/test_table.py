"""The table of seams: its rows, and wrappers that pass on what they do not know."""

from __future__ import annotations

import asyncio
import inspect
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deepeyes_patch.seams import families, table, wrapping
from deepeyes_patch.seams.examine import examine
from deepeyes_patch.seams.live import LiveView
from deepeyes_patch.seams.rows import Seam
from deepeyes_patch.settings import REPAIRS
from deepeyes_patch.startup import failed_start, integrity, stops
from tests import made_up

WRAPPED = [row for row in table.SEAMS if row.wrapper is not None]
IDS = [f"{row.module.rpartition('.')[2]}.{row.name}" for row in WRAPPED]


def test_no_two_rows_of_a_repair_are_about_the_same_function() -> None:
    places = [(row.repair, row.module, row.owner and row.owner.shown, row.name) for row in table.SEAMS]
    assert len(set(places)) == len(places)


def test_every_repair_has_rows_and_says_what_it_patched() -> None:
    assert {row.repair for row in table.SEAMS} == set(REPAIRS)
    for repair in REPAIRS:
        assert any(row.reported for row in table.SEAMS if row.repair == repair)


def test_modules_and_rows() -> None:
    for repair in REPAIRS:
        found = [row for module in table.modules(repair) for row in table.rows(repair, module)]
        assert sorted(map(id, found)) == sorted(id(row) for row in table.SEAMS if row.repair == repair)


def test_a_signature_is_read() -> None:
    row = Seam("processor", "m", None, "async? load(prompt, image_data)", None, "", "")
    assert (str(row), row.name, row.arguments, row.coroutine) == (
        "load(prompt, image_data)",
        "load",
        ("prompt", "image_data"),
        None,
    )
    assert Seam("processor", "m", None, "async serve(args)", None, "", "").coroutine is True
    row = Seam("processor", "m", None, "asynchronous()", None, "", "")
    assert (row.name, row.arguments, row.coroutine) == ("asynchronous", (), False)


def test_every_function_that_stops_sglang_is_heard() -> None:
    """The rope's doors stop a scheduler, whose end SGLang reports itself."""
    names = {name for row in table.SEAMS for name in (row.wrapper, row.door) if name is not None}
    ending = failed_start.heard(lambda call: None).__code__
    for name in names:
        module, _, _ = name.partition(":")
        if module == "startup.stops":
            assert integrity.load(name).__code__ is ending, name


# --- parameters that a later release adds -----------------------------------------------------------------

RESULT = ([], SimpleNamespace(), {})  # as the processor's functions return it
RECORD = "seen.append(new); return result"

# Arguments with which a wrapper has nothing to do but to call through.
ARGUMENTS: dict[str, Any] = {
    "prompt": "text",
    "input_text": "text",
    "obj": SimpleNamespace(input_ids=None),
    "scheduler": SimpleNamespace(model_config=SimpleNamespace(hf_config=None)),
    "server_args": SimpleNamespace(enable_metrics=False, model_path="a-model"),
    "positions": torch.arange(3),
}


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Every module of the table, whose functions have one parameter more; what they got for it."""
    seen: list[Any] = []
    for name in {row.module for row in table.SEAMS}:
        module = types.ModuleType(name)
        vars(module).update(seen=seen, result=RESULT)
        exec(made_up.module(made_up.rows_of(name), "new", RECORD), vars(module))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(stops, "_hf_config", lambda server_args: None)
    yield seen
    wrapping.restore_all()


@pytest.mark.parametrize("row", WRAPPED, ids=IDS)
def test_a_parameter_that_a_later_release_adds_reaches_sglang(row: Seam, sglang: list[Any]) -> None:
    """The check at start passes: all parameters that we read are there. So the call has to pass too.

    Before the rebuild the wrapper of ``_tokenize_one_request`` took one argument: with a second one, every
    request of such a release would have ended in a TypeError, text prompts too.
    """
    (finding,) = examine(LiveView(), [row])
    assert finding.problem is None
    put = wrapping.wrap_traceably if row.traceable else wrapping.wrap
    assert row.wrapper is not None
    put(finding.handle, row.name, integrity.load(row.wrapper))
    call(row, finding.handle, new=7)
    assert sglang == [7]


def call(row: Seam, owner: Any, **more: Any) -> None:
    """Call a function of a made-up module, as SGLang does: by keyword."""
    names = [name for name in row.arguments if name not in ("self", "kwargs")]
    arguments = {**{name: ARGUMENTS.get(name) for name in names}, **more}
    if row.name == "__init__":
        owner(**arguments)
        return
    if row.owner is None:
        result = getattr(owner, row.name)(**arguments)
    else:
        instance = owner.__new__(owner)
        families.keep_model(instance, None)
        instance.layers, instance.recv_req = [], SimpleNamespace(input_text="text", input_ids=None)
        result = getattr(instance, row.name)(**arguments)
    result = asyncio.run(result) if inspect.iscoroutine(result) else result
    assert result == RESULT
