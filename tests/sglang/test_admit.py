"""The tokenizer manager takes a request: the real class and the real processor, and no server around them.

SGLang asks the image processor only about requests that carry media. And it cuts ids to the context length,
but not their positions and images.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

import deepeyes_patch
from deepeyes_patch.errors import RefusedRequest
from tests.lab import managers, models, processors
from tests.sglang import rollouts
from tests.sglang.records import counts
from tests.sglang.rollouts import picture

CONTEXT = 300  # tokens; an image of 448 x 224 takes about a hundred
IMAGES = [picture(448, 224)]


def cutting(folder: Path, **more: Any) -> Any:
    """A manager that cuts ids to the context length."""
    return managers.manager(folder, allow_auto_truncate=True, context_length=CONTEXT, **more)


@pytest.fixture
def manager(folder: Path, patched: None) -> Any:
    return cutting(folder)


def generate(**fields: Any) -> Any:
    return importlib.import_module("sglang.srt.managers.io_struct").GenerateReqInput(
        sampling_params={"max_new_tokens": 2}, **fields
    )


def embed(**fields: Any) -> Any:
    return importlib.import_module("sglang.srt.managers.io_struct").EmbeddingReqInput(**fields)


def refused(manager: Any, reason: str, **fields: Any) -> str:
    with pytest.raises(RefusedRequest) as caught:
        managers.tokenize(manager, generate(**fields))
    assert caught.value.reason == reason
    return str(caught.value)


def test_requests_with_images_are_served(folder: Path, manager: Any) -> None:
    for request in (
        rollouts.expanded(folder, IMAGES),
        rollouts.drifted(folder, rollouts.expanded(folder, IMAGES), "after"),
        rollouts.short(folder, IMAGES),
    ):
        sent = list(request.ids)
        tokenized = managers.tokenize(manager, generate(input_ids=sent, image_data=list(IMAGES)))
        assert list(tokenized.input_ids) == request.expected_ids
        assert sent == request.ids, "the caller's list was changed"
    assert counts() == {"restored": 3}


def test_placeholders_without_media_are_refused(folder: Path, manager: Any) -> None:
    tokens = rollouts.vision(folder)
    text = rollouts.tokenize(folder, "Look: ")
    message = refused(manager, "placeholders", input_ids=[*text, tokens.start, tokens.image, tokens.end])
    assert f"1 image placeholder(s) (token {tokens.image}), the first at position {len(text) + 1}" in message
    message = refused(manager, "placeholders", input_ids=[*text, *[tokens.image] * 50])
    assert "50 image placeholder(s)" in message
    assert "1 video placeholder(s)" in refused(manager, "placeholders", input_ids=[*text, tokens.video])
    for empty in ([], [None]):
        message = refused(manager, "placeholders", input_ids=[tokens.image], image_data=empty)
        assert "no image came with them" in message
    assert counts() == {"refused:placeholders": 5}


def test_requests_without_placeholders_are_served(folder: Path, manager: Any) -> None:
    tokens = rollouts.vision(folder)
    ids = [*rollouts.tokenize(folder, "Look: "), tokens.start, tokens.end]
    assert list(managers.tokenize(manager, generate(input_ids=list(ids))).input_ids) == ids
    tokenized = managers.tokenize(manager, generate(text="Look: "))
    assert list(tokenized.input_ids) == rollouts.tokenize(folder, "Look: ")


def test_text_beside_ids_and_images_is_refused(folder: Path, manager: Any) -> None:
    """SGLang would take the text and drop the ids without a word."""
    ids = rollouts.short(folder, IMAGES).ids
    message = refused(manager, "unsupported", text="a", input_ids=ids, image_data=list(IMAGES))
    assert "holds both text and input_ids" in message


@pytest.mark.parametrize("kind", ["qwen3_vl"])
def test_a_text_only_model_is_left_alone(folder: Path, patched: None) -> None:
    """Ids that mean an image to another model."""
    token = rollouts.vision(folder).image
    other = managers.manager(models.ensure("qwen3"), context_length=CONTEXT)
    assert other.mm_processor is None
    assert list(managers.tokenize(other, generate(input_ids=[token])).input_ids) == [token]
    assert counts() == {}


# --- ids that SGLang cuts -------------------------------------------------------------------------------


def long_request(folder: Path) -> rollouts.Request:
    """An image with one placeholder, which stock takes too, and text beyond the context length behind it."""
    request = rollouts.short(folder, IMAGES)
    tail = rollouts.tokenize(folder, " and so on")
    tail *= CONTEXT // len(tail)
    return rollouts.Request(request.ids + tail, request.images, request.expected_ids + tail)


def test_ids_that_sglang_cut_are_refused(folder: Path, request: pytest.FixtureRequest) -> None:
    """Stock serves them, with positions and features of more tokens than there are."""
    long = long_request(folder)
    stock = managers.tokenize(cutting(folder), generate(input_ids=list(long.ids), image_data=list(IMAGES)))
    kept = len(stock.input_ids)
    assert kept < len(long.expected_ids)
    manager = request.getfixturevalue("manager")
    message = refused(manager, "cut", input_ids=list(long.ids), image_data=list(IMAGES))
    assert f"the {len(long.expected_ids)} input_ids of this request exceed" in message
    assert f"cut them to {kept}" in message


def test_text_that_sglang_cut_is_served(folder: Path, manager: Any) -> None:
    """It has no images and no positions of its own to go astray."""
    ids = rollouts.tokenize(folder, " and so on") * CONTEXT
    tokenized = managers.tokenize(manager, generate(input_ids=list(ids)))
    kept = len(tokenized.input_ids)
    assert kept < len(ids)
    assert list(tokenized.input_ids) == ids[:kept]


@pytest.fixture
def embedder(folder: Path, patched: None) -> Any:
    return cutting(folder, is_embedding=True)


def test_requests_for_an_embedding(folder: Path, embedder: Any) -> None:
    """To 0.5.14, SGLang's class for them has another name for what the processor made."""
    request = rollouts.expanded(folder, IMAGES)
    tokenized = managers.tokenize(embedder, embed(input_ids=list(request.ids), image_data=list(IMAGES)))
    assert list(tokenized.input_ids) == request.expected_ids
    long = long_request(folder)
    with pytest.raises(RefusedRequest, match=rf"the {len(long.expected_ids)} input_ids.*cut") as caught:
        managers.tokenize(embedder, embed(input_ids=list(long.ids), image_data=list(IMAGES)))
    assert caught.value.reason == "cut"


@pytest.mark.skipif(
    not hasattr(processors.processor_class(), "get_mm_data"),
    reason="this release has no encoder disaggregation",
)
@pytest.mark.parametrize("kind", ["qwen3_vl"])
def test_ids_that_sglang_cut_before_the_encoder_answers(folder: Path, patched: None) -> None:
    """With ``zmq_to_scheduler`` the scheduler gets them as they were sent, and waits for the embeddings."""
    manager = cutting(
        folder,
        language_only=True,
        encoder_urls=("http://127.0.0.1:1",),
        encoder_transfer_backend="zmq_to_scheduler",
    )
    request = rollouts.expanded(folder, IMAGES)

    def waiting(ids: list[int]) -> Any:
        asked = generate(input_ids=ids, image_data=list(IMAGES))
        # 0.5.9 has another name for it.
        asked.need_wait_for_mm_inputs = asked.need_wait_for_image = True
        return asked

    tokenized = managers.tokenize(manager, waiting(list(request.ids)))
    assert tokenized.mm_inputs is None
    assert list(tokenized.input_ids) == request.ids
    long = waiting(request.ids + rollouts.tokenize(folder, " and so on") * CONTEXT)
    count = len(long.input_ids)
    with pytest.raises(RefusedRequest, match=rf"the {count} input_ids.*cut them to") as caught:
        managers.tokenize(manager, long)
    assert caught.value.reason == "cut"


# --- an SGLang of tomorrow ------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"new": 7}])
@pytest.mark.parametrize("kind", ["qwen3_vl"])
def test_a_new_optional_parameter(
    more: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passed the check at start, and then every request failed, text too."""
    cls = importlib.import_module(managers.MODULE).TokenizerManager
    original = cls._tokenize_one_request
    came = []

    @functools.wraps(original)
    async def newer(self: Any, obj: Any, new: Any = None) -> Any:
        came.append(new)
        return await original(self, obj)

    newer.__signature__ = inspect.signature(  # type: ignore[attr-defined]
        lambda self, obj, new=None: None
    )
    monkeypatch.setattr(cls, "_tokenize_one_request", newer)
    deepeyes_patch.install(["processor"])
    try:
        manager = cutting(folder)
        request = rollouts.expanded(folder, IMAGES)
        asked = generate(input_ids=list(request.ids), image_data=list(IMAGES))
        assert list(managers.tokenize(manager, asked, **more).input_ids) == request.expected_ids
        managers.tokenize(manager, generate(text="Look: "), **more)
        stray = generate(input_ids=[rollouts.vision(folder).image])
        with pytest.raises(RefusedRequest, match="no image came with them"):
            managers.tokenize(manager, stray, **more)
    finally:
        deepeyes_patch.uninstall()
    assert came == [more.get("new")] * 2
