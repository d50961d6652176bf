"""SGLang's gRPC servicer, with messages as a client sends them: what it makes for the scheduler.

The servicer's own class converts the messages. Its constructor, which needs a scheduler, does not run.
Expected positions are those of ``transformers``.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import deepeyes_patch
from deepeyes_patch.errors import IncompatibleSGLangError, RefusedRequest
from deepeyes_patch.seams import families
from deepeyes_patch.seams.families import read_config
from deepeyes_patch.seams.table_server import GRPC_SERVER, GRPC_SERVICER
from deepeyes_patch.startup import stops
from tests.lab import over_grpc, processors, reference
from tests.lab.over_grpc import Asked
from tests.sglang import rollouts

pytestmark = pytest.mark.skipif(
    over_grpc.servicer() is None, reason="no gRPC servicer is known that runs with this release"
)


@pytest.fixture
def servicer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real servicer of a model, without what its constructor starts."""
    over_grpc.messages()
    processors.processor_class()
    cls = importlib.import_module(GRPC_SERVICER).SGLangSchedulerServicer
    made = object.__new__(cls)
    made.tokenizer = None
    families.keep_model(made, read_config(processors.hf_config(folder)))
    return made


@pytest.fixture
def asked(folder: Path) -> Asked:
    """Two images, expanded, as a client preprocesses them."""
    images = [rollouts.picture(448, 224), rollouts.picture(224, 672)]
    made = reference.expand(folder, rollouts.conversation(2), images)
    runs = [(first, last - first + 1) for first, last in rollouts.spans(folder, made.input_ids)]
    return Asked(made.input_ids, made.grids, made.pixel_values, runs)


def converted(servicer: Any, asked: Asked) -> Any:
    return servicer._convert_generate_request(asked.message())


def test_stock_leaves_positions_to_the_scheduler(servicer: Any, asked: Asked) -> None:
    assert converted(servicer, asked).mm_inputs.mrope_positions is None


@pytest.mark.parametrize("ranges", ["with ranges", "without ranges"])
def test_positions_are_those_of_transformers(
    ranges: str, servicer: Any, asked: Asked, folder: Path, patched: None
) -> None:
    tokenized = converted(servicer, asked if ranges == "with ranges" else replace(asked, runs=()))
    positions, delta = reference.positions(folder, asked.ids, asked.grids)
    assert list(tokenized.input_ids) == asked.ids
    assert torch.equal(tokenized.mm_inputs.mrope_positions, positions)
    assert tokenized.mm_inputs.mrope_position_delta.tolist() == [[delta]]
    assert tokenized.mm_inputs.im_token_id == rollouts.vision(folder).image
    (item,) = tokenized.mm_inputs.mm_items
    assert [tuple(pair) for pair in item.offsets] == rollouts.spans(folder, asked.ids)


def test_grids_reach_sglang_as_it_makes_them(servicer: Any, asked: Asked, patched: None) -> None:
    assert asked.grids is not None
    tokenized = converted(servicer, replace(asked, grids=asked.grids.float()))
    (item,) = tokenized.mm_inputs.mm_items
    assert item.image_grid_thw.dtype == torch.int64
    assert torch.equal(item.image_grid_thw, asked.grids)


def test_text(servicer: Any, patched: None) -> None:
    tokenized = converted(servicer, Asked([5, 6, 7]))
    assert list(tokenized.input_ids) == [5, 6, 7]
    assert tokenized.mm_inputs is None


def wrong(asked: Asked, folder: Path) -> dict[str, tuple[Asked, str]]:
    ids, (first, _) = list(asked.ids), asked.runs[0]
    vision = rollouts.vision(folder)
    assert asked.grids is not None
    assert asked.pixels is not None
    return {
        "a pad missing": (replace(asked, ids=ids[:first] + ids[first + 1 :]), "image 0 of 2: input_ids hold"),
        "one placeholder for an image": (
            replace(asked, ids=ids[: first + 1] + ids[first + asked.runs[0][1] :]),
            "image 0 of 2: input_ids hold 1 image placeholders",
        ),
        "images swapped": (replace(asked, grids=asked.grids.flip(0)), "image 0 of 2: input_ids hold"),
        "an image missing": (
            replace(asked, grids=asked.grids[:1], pixels=asked.pixels[: int(asked.grids[0].prod())]),
            "hold 2 image span.*1 image",
        ),
        "pixels missing": (replace(asked, pixels=asked.pixels[:-4]), "pixel_values of shape"),
        "no grids": (replace(asked, grids=None), "holds no image_grid_thw"),
        "other ranges": (replace(asked, runs=[(a + 1, n) for a, n in asked.runs]), "mm_placeholders are at"),
        "a stray pad": (replace(asked, ids=[*ids, vision.image]), "without vision_start"),
        "an id beyond the vocabulary": (replace(asked, ids=[10**7, *ids]), "and the model has embeddings"),
        "pads and no image at all": (Asked(ids), "and no image came with them"),
        "images by their URLs": (
            Asked(ids, more={"image_urls": ["http://a/b.png"]}),
            "mm_inputs hold image_urls: over gRPC",
        ),
        "a clip beside images": (replace(asked, more={"video_data": [b"clip"]}), "mm_inputs hold video_data"),
    }


NAMES = (
    *("a pad missing", "one placeholder for an image", "images swapped", "an image missing"),
    *("pixels missing", "no grids", "other ranges", "a stray pad", "an id beyond the vocabulary"),
    *("pads and no image at all", "images by their URLs", "a clip beside images"),
)


@pytest.mark.parametrize("name", NAMES)
def test_refused_with_a_message(name: str, servicer: Any, asked: Asked, folder: Path, patched: None) -> None:
    request, message = wrong(asked, folder)[name]
    with pytest.raises(RefusedRequest, match=message):
        converted(servicer, request)


def test_embeddings_of_text_alone(servicer: Any, asked: Asked, folder: Path, patched: None) -> None:
    pb = over_grpc.messages()

    def convert(ids: list[int]) -> Any:
        tokenized = pb.TokenizedInput(input_ids=ids)
        return servicer._convert_embed_request(pb.EmbedRequest(request_id="r", tokenized=tokenized))

    assert list(convert([5, 6, 7]).input_ids) == [5, 6, 7]
    with pytest.raises(RefusedRequest, match="and no image came with them"):
        convert(list(asked.ids))


def test_another_model_is_left_alone(servicer: Any, asked: Asked, patched: None) -> None:
    families.keep_model(servicer, None)
    ids = list(asked.ids)
    assert list(converted(servicer, Asked(ids)).input_ids) == ids


# --- the start of the server -------------------------------------------------------------------------------


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A made-up servicer, whose class takes few arguments."""
    made = ModuleType(GRPC_SERVICER)

    class SGLangSchedulerServicer:
        def __init__(self, server_args: Any) -> None: ...
        def _convert_generate_request(self, grpc_req: Any) -> None: ...
        def _convert_embed_request(self, grpc_req: Any) -> None: ...

    SGLangSchedulerServicer.__module__ = GRPC_SERVICER
    for function in vars(SGLangSchedulerServicer).values():
        if callable(function):
            function.__module__ = GRPC_SERVICER
    made.SGLangSchedulerServicer = SGLangSchedulerServicer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, GRPC_SERVICER, made)
    return made


def arguments(folder: Path) -> Any:
    return SimpleNamespace(model_path=str(folder), trust_remote_code=False, revision=None)


def test_the_servicer_reads_the_model(module: Any, folder: Path, patched: None) -> None:
    made = module.SGLangSchedulerServicer(server_args=arguments(folder))
    assert families.model_of(made) == read_config(processors.hf_config(folder))


def test_a_configuration_without_what_is_needed(
    module: Any, folder: Path, patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SimpleNamespace(model_type="qwen3_vl", vision_config=SimpleNamespace(spatial_merge_size=2))
    monkeypatch.setattr(stops, "_hf_config", lambda server_args: config)
    with pytest.raises(IncompatibleSGLangError, match="would be served over gRPC, but its image token id is"):
        module.SGLangSchedulerServicer(server_args=arguments(folder))


def test_a_servicer_in_another_shape(module: Any, folder: Path) -> None:
    del module.SGLangSchedulerServicer._convert_generate_request
    deepeyes_patch.install(["processor"])
    try:
        with pytest.raises(IncompatibleSGLangError, match=r"_convert_generate_request.*missing"):
            module.SGLangSchedulerServicer(server_args=arguments(folder))
        server = importlib.import_module(GRPC_SERVER)
        with pytest.raises(IncompatibleSGLangError, match=r"_convert_generate_request.*missing"):
            server.serve_grpc(arguments(folder))
    finally:
        deepeyes_patch.uninstall()


def test_a_server_that_drops_images(folder: Path, patched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 0.5.9, SGLang's own module defines the servicer."""
    server = importlib.import_module(GRPC_SERVER)
    monkeypatch.setattr(server, "SGLangSchedulerServicer", object, raising=False)
    with pytest.raises(IncompatibleSGLangError, match="drops the images of requests"):
        server.serve_grpc(arguments(folder))
