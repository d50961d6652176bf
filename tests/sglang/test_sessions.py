"""Turns of a session: the positions that the scheduler gives the joined prompt, beside those of transformers.

The processor, the session and the scheduler's method are the release's; tests/e2e/test_sessions.py has
servers and log-probs.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deepeyes_patch.errors import RefusedRequest
from tests.lab import managers, models, reference, schedulers
from tests.sglang import rollouts
from tests.sglang.rollouts import IMAGE, picture

# Whether each turn has an image.
SHAPES = {"an image, text": (1, 0), "two images": (1, 1), "text, an image": (0, 1), "three turns": (1, 0, 1)}
ANSWER = [5, 6, 7, 8]


@pytest.fixture
def kind() -> models.Kind:
    return "qwen3_vl"


def names_turns() -> bool:
    """Whether a request can name the turn before: 0.5.3 and 0.5.3.post1 read a field that is not there."""
    return hasattr(importlib.import_module("sglang.srt.managers.io_struct").SessionParams(), "rid")


@pytest.fixture
def named() -> None:
    if not names_turns():
        pytest.skip("no request can name the turn before")


class Session:
    """A session of which one turn after the other is asked, and each is answered by `ANSWER`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scheduler = schedulers.scheduler(folder)
        self.scheduler.open("s")
        self.ids: list[int] = []
        self.images: list[Any] = []
        self.last: Any = None

    def ask(self, with_image: int, **params: Any) -> Any:
        """The scheduler's request for the next turn."""
        new = [picture(448, 224, seed=len(self.images))] if with_image else []
        text = f"Turn: {IMAGE if new else ''}what is there?\n"
        made = self.tokenized(rollouts.tokenize(self.folder, text), new, params)
        self.scheduler.receive(made)
        request = self.scheduler.queue[-1]
        self.ids += reference.expand(self.folder, text, new).input_ids
        self.images += new
        return request

    def tokenized(self, ids: list[int], images: list[Any], params: dict[str, Any]) -> Any:
        request = importlib.import_module("sglang.srt.managers.io_struct").GenerateReqInput(
            input_ids=ids,
            image_data=images or None,
            sampling_params={"max_new_tokens": len(ANSWER)},
            session_params={"id": "s", "rid": self.last and self.last.rid, **params},
        )
        return managers.tokenize(managers.manager(self.folder), request)

    def answer(self, request: Any) -> None:
        request.output_ids.extend(ANSWER)
        request.finished_reason = SimpleNamespace()
        self.ids += ANSWER
        self.last = request

    def positions(self) -> tuple[torch.Tensor, int]:
        grids = rollouts.image_grids(self.folder, self.images) if self.images else None
        return reference.positions(self.folder, self.ids, grids)


def aborted(request: Any) -> str | None:
    reason = getattr(request, "to_finish", None) or request.finished_reason
    return getattr(reason, "message", None)


def is_exact(session: Session, request: Any) -> bool:
    right, delta = session.positions()
    inputs = request.multimodal_inputs
    if inputs is None:
        return not session.images
    return torch.equal(inputs.mrope_positions, right) and int(inputs.mrope_position_delta.sum()) == delta


@pytest.mark.parametrize("shape", SHAPES)
def test_exact(shape: str, folder: Path, named: None, patched: None) -> None:
    session = Session(folder)
    for with_image in SHAPES[shape]:
        request = session.ask(with_image)
        assert aborted(request) is None, aborted(request)
        assert len(request.origin_input_ids) == len(session.ids)
        assert is_exact(session, request)
        session.answer(request)


def test_two_turns_after_one(folder: Path, named: None, patched: None) -> None:
    """A session is a tree: what one branch adds is not in the other one."""
    session = Session(folder)
    first = session.ask(1)
    session.answer(first)
    before = list(session.ids), list(session.images)
    for _ in range(2):
        session.ids, session.images, session.last = *map(list, before), first
        request = session.ask(1)
        assert is_exact(session, request)
        assert len(request.multimodal_inputs.mm_items) == 2
    assert len(first.multimodal_inputs.mm_items) == 1


def test_an_offset_that_cuts_an_image_off_is_refused(
    folder: Path, named: None, patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = importlib.import_module("sglang.srt.managers.schedule_batch")
    # The log is written by the first of several schedulers.
    monkeypatch.setattr(batch, "get_tensor_model_parallel_rank", lambda: 0, raising=False)
    session = Session(folder)
    session.answer(session.ask(1))
    request = session.ask(0, offset=20)  # inside the image
    assert "with the 20 ids that its session has before it, its images" in (aborted(request) or "")


def test_stock(folder: Path, named: None) -> None:
    session = Session(folder)
    session.answer(session.ask(1))
    request = session.ask(1)
    assert is_exact(session, request) == joins()


def joins() -> bool:
    """Whether this release joins the positions itself."""
    cls = importlib.import_module("sglang.srt.managers.schedule_batch").Req
    return hasattr(cls, "_extend_session_image_inputs")


def test_where_no_turn_can_be_named_a_session_is_refused(folder: Path, patched: None) -> None:
    """Stock's scheduler ends of it."""
    if names_turns():
        pytest.skip("a request can name the turn before")
    session = Session(folder)
    params = importlib.import_module("sglang.srt.managers.io_struct").SessionParams(id="s")
    with pytest.raises(AttributeError, match="rid"):
        session.scheduler.sessions["s"].create_req(SimpleNamespace(session_params=params), None)
    for fields in ({"text": "a"}, {"input_ids": [5]}):
        request = importlib.import_module("sglang.srt.managers.io_struct").GenerateReqInput(
            session_params={"id": "s"}, sampling_params={"max_new_tokens": 1}, **fields
        )
        with pytest.raises(RefusedRequest, match="its sessions do not work"):
            managers.tokenize(managers.manager(folder), request)
