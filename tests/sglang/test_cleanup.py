"""A refused request leaves nothing in the tokenizer manager; in stock some releases keep it for ever."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepeyes_patch.errors import RefusedRequest
from tests.lab import managers, models, processors
from tests.sglang import rollouts
from tests.sglang.rollouts import picture

IMAGES = [picture(448, 224)]


@pytest.fixture
def kind() -> models.Kind:
    return "qwen3_vl"


def one_pad_short(folder: Path) -> list[int]:
    ids = rollouts.expanded(folder, IMAGES).ids
    first = rollouts.spans(folder, ids)[0][0]
    return ids[:first] + ids[first + 1 :]


def only_placeholders(folder: Path) -> list[int]:
    return rollouts.expanded(folder, IMAGES).ids


SENT: dict[str, Callable[[Path], dict[str, Any]]] = {
    "single": lambda f: {"input_ids": one_pad_short(f), "image_data": list(IMAGES)},
    "stream": lambda f: {"input_ids": one_pad_short(f), "image_data": list(IMAGES), "stream": True},
    "batch": lambda f: {"input_ids": [one_pad_short(f)] * 3, "image_data": [list(IMAGES)] * 3},
    "two samples": lambda f: {
        "input_ids": one_pad_short(f),
        "image_data": list(IMAGES),
        "sampling_params": {"max_new_tokens": 2, "n": 2},
    },
    "no images": lambda f: {"input_ids": only_placeholders(f)},
}


def ask(manager: Any, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Exception | None:
    """What the first answer raises. Nothing is sent: a scheduler does not listen."""
    monkeypatch.setattr(manager, "auto_create_handle_loop", lambda: None)
    io_struct = importlib.import_module("sglang.srt.managers.io_struct")
    fields.setdefault("sampling_params", {"max_new_tokens": 2})

    async def work() -> Exception | None:
        try:
            async for _ in manager.generate_request(io_struct.GenerateReqInput(**fields)):
                break
        except Exception as error:
            return error
        return None

    return processors.run(asyncio.wait_for(work(), processors.REQUEST_SECONDS))


@pytest.mark.parametrize("shape", SENT)
def test_nothing_is_left(shape: str, folder: Path, patched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = managers.manager(folder)
    before = dict(manager.rid_to_state)
    for _ in range(3):
        error = ask(manager, monkeypatch, **SENT[shape](folder))
        assert isinstance(error, RefusedRequest), error
    assert manager.rid_to_state == before


def test_what_sglang_refuses_itself_leaves_nothing_either(
    folder: Path, patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = managers.manager(folder)
    before = dict(manager.rid_to_state)
    error = ask(manager, monkeypatch, input_ids=[1] * (manager.context_len + 1))
    assert "longer than the model's context length" in str(error)
    assert manager.rid_to_state == before


def test_a_text_prompt_with_a_broken_image_leaves_nothing_either(
    folder: Path, patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = managers.manager(folder)
    before = dict(manager.rid_to_state)
    broken = "data:image/png;base64,AAAA"
    error = ask(manager, monkeypatch, text=rollouts.conversation(1), image_data=[broken])
    assert error is not None
    assert manager.rid_to_state == before


def test_stock_keeps_what_raises_if_it_keeps_states_early(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And cannot remove it: from 0.5.10 on, to 0.5.13."""
    manager = managers.manager(folder)
    manager.rid_to_state.clear()  # other tests have asked it
    error = ask(manager, monkeypatch, input_ids=[1] * (manager.context_len + 1))
    assert "longer than the model's context length" in str(error)
    assert len(manager.rid_to_state) == int(managers.keeps_what_raises(manager))
    manager.rid_to_state.clear()
