"""Turns of a session: the positions that the scheduler gives the joined prompt, beside those of transformers.

The processor, the session and the scheduler's method are the release's; tests/e2e/test_sessions.py has
servers and log-probs.
"""

from __future__ import annotations

import importlib
import inspect
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


def lost_field() -> str | None:
    """What a session of this release reads of a request, and no request has (up to 0.5.4.post1)."""
    structs = importlib.import_module("sglang.srt.managers.io_struct")
    if not hasattr(structs.SessionParams(), "rid"):
        return "rid"
    source = inspect.getsource(inspect.unwrap(schedulers._sessions().Session.create_req))
    lost = "req.lora_path" in source and not hasattr(structs.TokenizedGenerateReqInput, "lora_path")
    return "lora_path" if lost else None


@pytest.fixture
def works() -> None:
    if lost_field():
        pytest.skip("no session of this release works")


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is written by the first of several schedulers."""
    batch = importlib.import_module("sglang.srt.managers.schedule_batch")
    monkeypatch.setattr(batch, "get_tensor_model_parallel_rank", lambda: 0, raising=False)


class Session:
    """A session of which one turn after the other is asked, and each is answered by `ANSWER`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scheduler = schedulers.scheduler(folder)
        self.scheduler.open("s")
        self.ids: list[int] = []
        self.images: list[Any] = []
        self.last: Any = None
        self.words = "Turn: "

    def ask(self, with_image: int, images: list[Any] | None = None, **params: Any) -> Any:
        """The scheduler's request for the next turn; ``images``: others than a new one."""
        new = images or ([picture(448, 224, seed=len(self.images))] if with_image else [])
        text = f"{self.words}{IMAGE if new else ''}what is there?\n"
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
def test_exact(shape: str, folder: Path, works: None, patched: None) -> None:
    session = Session(folder)
    for with_image in SHAPES[shape]:
        request = session.ask(with_image)
        assert aborted(request) is None, aborted(request)
        assert len(request.origin_input_ids) == len(session.ids)
        assert is_exact(session, request)
        session.answer(request)


def test_two_turns_after_one(folder: Path, works: None, patched: None) -> None:
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
    folder: Path, works: None, patched: None, one_rank: None
) -> None:
    session = Session(folder)
    session.answer(session.ask(1))
    request = session.ask(0, offset=20)  # inside the image
    assert "with the 20 ids that its session has before it, its images" in (aborted(request) or "")


def test_the_same_picture_at_the_same_place_of_two_turns(folder: Path, works: None, patched: None) -> None:
    session, same = Session(folder), [picture(448, 224)]
    for _ in range(2):
        request = session.ask(1, same)
        assert is_exact(session, request)
        session.answer(request)
    offsets = [pair for item in request.multimodal_inputs.mm_items for pair in item.offsets]
    assert offsets == rollouts.spans(folder, session.ids)[: len(offsets)]


@pytest.mark.parametrize("size", [(448, 448), (448, 224), (224, 224)])
@pytest.mark.parametrize("offset", [None, -(10**6)])
def test_an_offset_that_puts_another_image_in_the_place_of_one_is_refused(
    offset: int | None, size: tuple[int, int], folder: Path, works: None, patched: None, one_rank: None
) -> None:
    """What the turn before has there would stay beside it: stock fails over its features, or ends."""
    session = Session(folder)
    session.answer(session.ask(1))
    session.words = "" if offset is None else session.words  # the image takes the very place of the other
    offset = session.ids.index(rollouts.vision(folder).start) if offset is None else offset
    request = session.ask(1, [picture(*size)], offset=offset)
    assert "ids that its session has before it, its images" in (aborted(request) or "")


def test_stock(folder: Path, works: None) -> None:
    session = Session(folder)
    session.answer(session.ask(1))
    request = session.ask(1)
    assert is_exact(session, request) == joins()


def joins() -> bool:
    """Whether this release joins the positions itself."""
    cls = importlib.import_module("sglang.srt.managers.schedule_batch").Req
    return hasattr(cls, "_extend_session_image_inputs")


def test_where_no_session_works_it_is_refused(folder: Path, patched: None) -> None:
    """Stock's scheduler ends of it."""
    if (field := lost_field()) is None:
        pytest.skip("sessions work")
    session = Session(folder)
    structs = importlib.import_module("sglang.srt.managers.io_struct")
    values = dict.fromkeys(structs.TokenizedGenerateReqInput.__dataclass_fields__)
    made = SimpleNamespace(**{**values, "session_params": structs.SessionParams(id="s")})
    with pytest.raises(AttributeError, match=field):
        session.scheduler.sessions["s"].create_req(made, SimpleNamespace(bos_token_id=None))
    for fields in ({"text": "a"}, {"input_ids": [5]}):
        request = structs.GenerateReqInput(
            session_params={"id": "s"}, sampling_params={"max_new_tokens": 1}, **fields
        )
        with pytest.raises(RefusedRequest, match="its sessions do not work"):
            managers.tokenize(managers.manager(folder), request)
