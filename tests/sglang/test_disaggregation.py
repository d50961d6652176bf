"""Encoder disaggregation builds its prompt in ``get_mm_data``, from ids and embeddings made elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zmq
import zmq.asyncio

import deepeyes_patch
from deepeyes_patch.errors import RefusedRequest
from tests.lab import processors, reference
from tests.sglang import rollouts
from tests.sglang.rollouts import Request, picture

WAYS = ("default",)
IMAGES = [picture(448, 224), picture(224, 672)]

pytestmark = pytest.mark.skipif(
    not hasattr(processors.processor_class(), "get_mm_data"),
    reason="this release has no encoder disaggregation",
)

REQUESTS: dict[str, Callable[[Path], Request]] = {
    "short": lambda f: rollouts.short(f, IMAGES),
    "expanded": lambda f: rollouts.expanded(f, IMAGES),
    "drifted": lambda f: rollouts.drifted(f, rollouts.expanded(f, IMAGES), "between"),
    "mixed": lambda f: rollouts.mixed(f, IMAGES, {1}),
}


def knows_images_only() -> bool:
    """To 0.5.9 the method takes the images' embeddings and grids, and nothing of other media."""
    return "img_grid_thw" in inspect.signature(processors.processor_class().get_mm_data).parameters


def build(folder: Path, processor: Any, ids: list[int]) -> tuple[Any, torch.Tensor]:
    """(result, the embeddings [tokens, 8] of all images)."""
    from sglang.srt.managers.schedule_batch import Modality

    grids = rollouts.image_grids(folder, IMAGES)
    tokens = int(grids.prod(dim=1).sum()) // 4
    embeddings = torch.arange(tokens * 8, dtype=torch.float32).reshape(tokens, 8)
    sent = embeddings if knows_images_only() else {Modality.IMAGE: embeddings}
    made = processor.get_mm_data(ids, sent, img_grid_thw=grids)
    return made, embeddings


def part(made: Any, name: str) -> Any:
    return made[name] if isinstance(made, dict) else getattr(made, name)


@pytest.mark.parametrize("name", REQUESTS)
def test_exact(name: str, folder: Path, processor: Any, patched: None) -> None:
    request = REQUESTS[name](folder)
    sent = list(request.ids)
    made, embeddings = build(folder, processor, sent)
    grids = rollouts.image_grids(folder, IMAGES)
    positions, delta = reference.positions(folder, request.expected_ids, grids)
    assert sent == request.ids
    assert part(made, "input_ids") == request.expected_ids
    assert [pair for item in part(made, "mm_items") for pair in item.offsets] == rollouts.spans(
        folder, request.expected_ids
    )
    kept = [item.precomputed_embeddings for item in part(made, "mm_items")]
    assert torch.equal(torch.cat(kept), embeddings)
    assert torch.equal(part(made, "mrope_positions"), positions)
    assert int(part(made, "mrope_position_delta")) == delta


def test_stock_fails_on_expanded_ids(folder: Path, processor: Any) -> None:
    request = REQUESTS["expanded"](folder)
    with pytest.raises((AssertionError, IndexError)):
        build(folder, processor, request.ids)


def test_refused(folder: Path, processor: Any, patched: None) -> None:
    ids = REQUESTS["expanded"](folder).ids
    first = rollouts.spans(folder, ids)[0][0]
    with pytest.raises(RefusedRequest, match="image 0 of 2"):
        build(folder, processor, ids[:first] + ids[first + 1 :])
    with pytest.raises(RefusedRequest, match=r"1 image span.*2 image"):
        build(folder, processor, ids[rollouts.spans(folder, ids)[0][1] + 2 :])
    if not knows_images_only():
        with pytest.raises(RefusedRequest, match="audio data with input_ids"):
            processor.get_mm_data(ids, {}, img_grid_thw=None, audio_feature_lens=torch.tensor([80]))


def test_text_prompts_are_stock(folder: Path, processor: Any, request: pytest.FixtureRequest) -> None:
    text = rollouts.conversation(2)
    stock, _ = build(folder, processor, text)  # type: ignore[arg-type]
    request.getfixturevalue("patched")
    patched, _ = build(folder, processor, text)  # type: ignore[arg-type]
    assert part(patched, "input_ids") == part(stock, "input_ids")
    assert torch.equal(part(patched, "mrope_positions"), part(stock, "mrope_positions"))


# --- where the scheduler waits for the embeddings -----------------------------------------------------

WAITING_SECONDS = 10


def receiver() -> Any:
    """The release's module with the requests that wait; it has moved once."""
    for name in ("encoder.receiver", "encode_receiver"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(f"sglang.srt.disaggregation.{name}")
    raise AssertionError("no receiver")


def encoded(folder: Path) -> list[list[bytes]]:
    """What an encoder sends for ``IMAGES``: the real class, pickled, and the embeddings."""
    from sglang.srt.managers.schedule_batch import Modality

    cls = receiver().EmbeddingData
    grids = rollouts.image_grids(folder, IMAGES)
    embeddings = torch.arange(int(grids.prod(dim=1).sum()) // 4 * 8, dtype=torch.float32).reshape(-1, 8)
    modality = [Modality.IMAGE] * ("modality" in inspect.signature(cls).parameters)
    sent = cls("r", 1, 0, grids, *modality, embedding=embeddings)
    return [[pickle.dumps(sent.copy_without_embedding()), embeddings.numpy().tobytes()]]


def waited(
    folder: Path,
    processor: Any,
    ids: list[int] | None,
    text: str | None = None,
    messages: list[list[bytes]] | None = None,
) -> Any:
    """A request as the real class leaves it when the encoder's messages have come, through a real socket.

    ``messages``: others than those of ``IMAGES``.
    ``error``, which upstream never sets, is what would have ended the scheduler.
    """
    module = receiver()
    cls = getattr(module, "WaitingZmqRequest", None) or module.WaitingImageRequest
    fields = {
        "rid": "r",
        "recv_req": SimpleNamespace(rid="r", input_text=text, input_ids=ids, num_items_assigned=None),
        "mm_processor": processor,
        "encoder_urls": [],
        "model_type": processor.model_type,
        "host_name": "127.0.0.1",
        "receive_count": 1,
        "zmq_context": zmq.Context.instance(),  # 0.5.17 and 0.5.18 make none themselves
    }
    accepted = inspect.signature(cls).parameters
    waiting = cls(**{name: value for name, value in fields.items() if name in accepted})
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 0  # else leaving waits for ever, if the other end was closed before the message came
        socket.connect(f"tcp://127.0.0.1:{waiting.embedding_port}")
        for message in messages or encoded(folder):
            socket.send_multipart(message)
        deadline = time.monotonic() + WAITING_SECONDS
        while waiting.status.name == "PENDING" and waiting.error is None and time.monotonic() < deadline:
            try:
                waiting._try_recv_mm_data()
            except Exception as error:
                waiting.error = error
                waiting.recv_socket.close()  # its context waits for that, whenever it is collected
    if waiting.status.name == "PENDING" and waiting.error is None:
        waiting.recv_socket.close()
        raise AssertionError(f"still waiting after {WAITING_SECONDS} seconds")
    return waiting


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """To 0.5.16 the parts of the embeddings are joined on a GPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)


@pytest.mark.parametrize("name", REQUESTS)
def test_exact_in_the_scheduler(name: str, folder: Path, processor: Any, patched: None, no_gpu: None) -> None:
    request = REQUESTS[name](folder)
    waiting = waited(folder, processor, list(request.ids))
    assert waiting.status.name == "SUCCESS", waiting.error or waiting.error_msg
    assert list(waiting.recv_req.input_ids) == request.expected_ids
    grids = rollouts.image_grids(folder, IMAGES)
    positions, _ = reference.positions(folder, request.expected_ids, grids)
    assert torch.equal(part(waiting.recv_req.mm_inputs, "mrope_positions"), positions)


def test_stock_fails_in_the_scheduler(folder: Path, processor: Any, no_gpu: None) -> None:
    """To 0.5.16 there are no ids for any request, and the server ends; then expanded ones are HTTP 500."""
    for name in ("short", "expanded"):
        waiting = waited(folder, processor, REQUESTS[name](folder).ids)
        if waiting.error is not None:
            assert isinstance(waiting.error, (TypeError, ValueError))
            continue
        assert waiting.status.name == ("SUCCESS" if name == "short" else "FAIL")
        assert waiting.error_code is None


def test_refused_in_the_scheduler(folder: Path, processor: Any, patched: None, no_gpu: None) -> None:
    ids = REQUESTS["expanded"](folder).ids
    first, last = rollouts.spans(folder, ids)[0]
    waiting = waited(folder, processor, ids[:first] + ids[first + 1 :])
    assert waiting.error is None
    assert waiting.status.name == "FAIL"
    assert waiting.error_code == 400
    assert f"image 0 of 2: input_ids hold {last - first} image placeholders" in waiting.error_msg
    assert waiting.recv_socket is None or waiting.recv_socket.closed


def test_faults_of_others_are_left_to_upstream(
    folder: Path, processor: Any, patched: None, no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("upstream's own")

    monkeypatch.setattr(processor, "get_mm_data", broken)
    waiting = waited(folder, processor, REQUESTS["expanded"](folder).ids)
    assert str(waiting.error) == "upstream's own" or waiting.status.name == "FAIL"
    assert waiting.error_code is None


def test_text_prompts_are_stock_in_the_scheduler(
    folder: Path, processor: Any, no_gpu: None, request: pytest.FixtureRequest
) -> None:
    text = rollouts.conversation(2)
    stock = waited(folder, processor, [1, 2, 3], text)
    request.getfixturevalue("patched")
    patched = waited(folder, processor, [1, 2, 3], text)
    assert stock.status.name == patched.status.name == "SUCCESS"
    assert patched.recv_req.input_ids == stock.recv_req.input_ids
    positions = [part(waiting.recv_req.mm_inputs, "mrope_positions") for waiting in (stock, patched)]
    assert torch.equal(*positions)


# --- where the tokenizer manager does -----------------------------------------------------------------


def taken(folder: Path, processor: Any, ids: list[int], messages: list[list[bytes]] | None = None) -> Any:
    """What the real receiver's method makes of the encoder's messages, which come through a real socket."""
    made = object.__new__(receiver().MMReceiverHTTP)
    made.encoder_transfer_backend = "zmq_to_tokenizer"
    made.model_type = processor.model_type

    async def take() -> Any:
        with (
            zmq.asyncio.Context() as context,
            context.socket(zmq.PUSH) as push,
            context.socket(zmq.PULL) as pull,
        ):
            push.linger = 0
            push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
            for message in messages or encoded(folder):
                await push.send_multipart(message)
            return await asyncio.wait_for(made._recv_mm_data("r", pull, processor, ids), WAITING_SECONDS)

    return processors.run(take())


@pytest.mark.parametrize("name", ["short", "drifted"])
def test_exact_in_the_tokenizer(name: str, folder: Path, processor: Any, patched: None, no_gpu: None) -> None:
    request = REQUESTS[name](folder)
    assert part(taken(folder, processor, list(request.ids)), "input_ids") == request.expected_ids


def test_refused_in_the_tokenizer(
    folder: Path, processor: Any, no_gpu: None, request: pytest.FixtureRequest
) -> None:
    """Stock fails, or from 0.5.20 on says that no embeddings came, of which SGLang makes HTTP 503."""
    ids = REQUESTS["expanded"](folder).ids
    first = rollouts.spans(folder, ids)[0][0]
    bad = ids[:first] + ids[first + 1 :]
    try:
        stock = taken(folder, processor, bad)
    except (AssertionError, IndexError):
        stock = None
    assert stock is None
    request.getfixturevalue("patched")
    with pytest.raises(RefusedRequest, match="image 0 of 2: input_ids hold"):
        taken(folder, processor, bad)


def test_a_receiver_that_is_not_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor is then not constructed, as where any other seam is gone."""
    processors.processor_class()
    module = receiver()
    for cls in [value for value in vars(module).values() if isinstance(value, type)]:
        if "_recv_mm_data" in vars(cls):
            monkeypatch.delattr(cls, "_recv_mm_data")
    deepeyes_patch.install(["processor"])
    try:
        with pytest.raises(
            deepeyes_patch.IncompatibleSGLangError,
            match=r"problem: _recv_mm_data\(mm_processor, prompt\): found nothing",
        ):
            processors.build("qwen3_vl")
    finally:
        deepeyes_patch.uninstall()
