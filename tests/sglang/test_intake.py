"""Placeholders in requests that carry no media, where the tokenizer manager takes them."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import deepeyes_patch
from tests.lab import processors
from tests.sglang import rollouts

MANAGER = "sglang.srt.managers.tokenizer_manager"


class _Reached(Exception):
    """The request got to upstream's own code."""


@pytest.fixture
def manager(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The real class's method on an object that holds the real processor, and no server around it."""
    cls = importlib.import_module(MANAGER).TokenizerManager

    async def _tokenize_one_request(self: Any, obj: Any) -> Any:
        if self.answer is None:
            raise _Reached
        return self.answer

    _tokenize_one_request.__module__ = MANAGER
    monkeypatch.setattr(cls, "_tokenize_one_request", _tokenize_one_request)
    deepeyes_patch.install(["processor"])
    made = object.__new__(cls)
    made.mm_processor = processors.build(kind)  # type: ignore[arg-type]
    made.answer = None
    yield made
    deepeyes_patch.uninstall()


def send(manager: Any, ids: Any, images: Any = None) -> None:
    io_struct = importlib.import_module("sglang.srt.managers.io_struct")
    obj = io_struct.GenerateReqInput(input_ids=ids, image_data=images)
    asyncio.run(manager._tokenize_one_request(obj))


def test_placeholders_without_media_are_refused(folder: Path, manager: Any) -> None:
    tokens = rollouts.vision(folder)
    text = rollouts.tokenize(folder, "Look: ")
    with pytest.raises(ValueError, match=rf"1 image placeholder.*position {len(text) + 1}, and no image"):
        send(manager, [*text, tokens.start, tokens.image, tokens.end])
    with pytest.raises(ValueError, match=r"50 image placeholder"):
        send(manager, [*text, *[tokens.image] * 50])
    with pytest.raises(ValueError, match=r"1 video placeholder"):
        send(manager, [*text, tokens.video])
    for empty in (None, [], [None]):
        with pytest.raises(ValueError, match="no image came with them"):
            send(manager, [tokens.image], empty)


def test_other_requests_pass(folder: Path, manager: Any) -> None:
    tokens = rollouts.vision(folder)
    text = rollouts.tokenize(folder, "Look: ")
    with pytest.raises(_Reached):
        send(manager, [*text, tokens.start, tokens.end])
    with pytest.raises(_Reached):
        send(manager, [tokens.image], [rollouts.picture(64, 64)])
    with pytest.raises(_Reached):
        asyncio.run(
            manager._tokenize_one_request(
                SimpleNamespace(text="hi", input_ids=None, contains_mm_input=lambda: False)
            )
        )


def test_text_beside_ids_and_images_is_refused(folder: Path, manager: Any) -> None:
    """SGLang would take the text and drop the ids without a word."""
    tokens = rollouts.vision(folder)
    obj = SimpleNamespace(text="a", input_ids=[tokens.image], contains_mm_input=lambda: True)
    with pytest.raises(ValueError, match="both text and input_ids"):
        asyncio.run(manager._tokenize_one_request(obj))


def test_other_models_pass(folder: Path, manager: Any) -> None:
    tokens = rollouts.vision(folder)
    for other in (None, SimpleNamespace(mm_tokens=SimpleNamespace(image_token_id=tokens.image))):
        manager.mm_processor = other
        with pytest.raises(_Reached):
            send(manager, [tokens.image])


def test_ids_that_sglang_cut_are_refused(folder: Path, manager: Any) -> None:
    """tests/e2e shows it on a real server with ``--allow-auto-truncate``."""
    tokens = rollouts.vision(folder)
    positions = SimpleNamespace(mrope_positions=torch.zeros(3, 10))
    manager.answer = SimpleNamespace(input_ids=[1] * 10, mm_inputs=positions)
    send(manager, [tokens.image], [rollouts.picture(64, 64)])
    manager.answer.input_ids.pop()
    with pytest.raises(ValueError, match=r"the 10 input_ids.*cut them to 9"):
        send(manager, [tokens.image], [rollouts.picture(64, 64)])


def test_requests_for_an_embedding(folder: Path, manager: Any) -> None:
    """SGLang's own classes of them; to 0.5.14 theirs have another field for what the processor made."""
    io_struct = importlib.import_module("sglang.srt.managers.io_struct")
    fields = inspect.signature(io_struct.TokenizedEmbeddingReqInput).parameters
    (name,) = {"mm_inputs", "image_inputs"} & set(fields)
    positions = SimpleNamespace(mrope_positions=torch.zeros(3, 10))
    token = rollouts.vision(folder).image
    asked = io_struct.EmbeddingReqInput(input_ids=[token], image_data=[rollouts.picture(64, 64)])
    manager.answer = SimpleNamespace(input_ids=[1] * 10, **{name: positions})
    asyncio.run(manager._tokenize_one_request(asked))
    manager.answer.input_ids.pop()
    with pytest.raises(ValueError, match=r"the 10 input_ids.*cut them to 9"):
        asyncio.run(manager._tokenize_one_request(asked))


def test_ids_that_sglang_cut_before_the_encoder_answers_are_refused(folder: Path, manager: Any) -> None:
    """Encoder disaggregation with ``zmq_to_scheduler``: there are no positions yet to see it by."""
    tokens = rollouts.vision(folder)
    manager.answer = SimpleNamespace(input_ids=[tokens.image] * 10, mm_inputs=None)
    send(manager, [tokens.image] * 10, [rollouts.picture(64, 64)])
    with pytest.raises(ValueError, match=r"the 11 input_ids.*cut them to 10"):
        send(manager, [tokens.image] * 11, [rollouts.picture(64, 64)])
