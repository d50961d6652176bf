"""SGLang's gRPC server, asked by a real client: stock and patched, beside ``transformers``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.e2e import shapes
from tests.lab import over_grpc, reference, server
from tests.lab.over_grpc import Asked, Told
from tests.lab.server import Server
from tests.sglang import rollouts

ANSWER_TOKENS = 16
SIZES = {"one": [(448, 224)], "two": [(448, 224), (224, 672)]}

pytestmark = pytest.mark.skipif(
    over_grpc.servicer() is None, reason="no gRPC servicer is known that runs with this release"
)


@pytest.fixture(scope="module")
def stock(folder: Path) -> Iterator[Server]:
    with over_grpc.serve(folder, shapes.STOCK) as running:
        yield running


@pytest.fixture(scope="module")
def patched(folder: Path) -> Iterator[Server]:
    with over_grpc.serve(folder, shapes.PATCHED) as running:
        yield running


@pytest.fixture(params=SIZES)
def asked(request: pytest.FixtureRequest, folder: Path) -> Asked:
    return preprocessed(folder, request.param)


def preprocessed(folder: Path, name: str) -> Asked:
    """Images, expanded and preprocessed by ``transformers``."""
    images = [rollouts.picture(*size) for size in SIZES[name]]
    made = reference.expand(folder, rollouts.conversation(len(images)), images)
    runs = [(first, last - first + 1) for first, last in rollouts.spans(folder, made.input_ids)]
    placeholder = {"im_token_id": rollouts.vision(folder).image}
    return Asked(made.input_ids, made.grids, made.pixel_values, runs, placeholder)


def error(folder: Path, asked: Asked, answer: Told) -> float:
    """The largest error of a log-prob of the answer."""
    assert answer.code == "OK", answer
    assert answer.prompt_tokens == len(asked.ids)
    assert len(answer.output_ids) == ANSWER_TOKENS
    right = reference.logprobs(folder, asked.ids, asked.grids, asked.pixels, answer.output_ids)
    return float((torch.tensor(answer.logprobs) - right).abs().max())


def test_patched_is_exact(folder: Path, asked: Asked, patched: Server, release: str) -> None:
    assert error(folder, asked, over_grpc.ask(patched, asked, ANSWER_TOKENS)) < shapes.NOISE
    said = [line for line in shapes.announcements(patched) if f"pid {patched.pid}: " in line]
    assert len(said) == 1
    assert "processor: patched (SGLangSchedulerServicer)" in said[0]


def test_what_follows_from_the_ids_may_be_left_out(folder: Path, asked: Asked, patched: Server) -> None:
    """Stock ends over a request without the placeholder's id, and over one without its places."""
    bare = replace(asked, runs=(), more={})
    assert error(folder, bare, over_grpc.ask(patched, bare, ANSWER_TOKENS)) < shapes.NOISE


def test_stock_gives_images_text_positions(folder: Path, asked: Asked, stock: Server) -> None:
    assert error(folder, asked, over_grpc.ask(stock, asked, ANSWER_TOKENS)) > shapes.WRONG


def test_text(folder: Path, patched: Server) -> None:
    text = Asked(rollouts.tokenize(folder, "Tell me about the red cup."))
    assert error(folder, text, over_grpc.ask(patched, text, ANSWER_TOKENS)) < shapes.NOISE


def mistakes(folder: Path) -> dict[str, tuple[Asked, str]]:
    """Requests that stock answers, or ends over."""
    good = preprocessed(folder, "two")
    ids, (first, _) = list(good.ids), good.runs[0]
    assert good.grids is not None
    return {
        "a pad missing": (replace(good, ids=ids[:first] + ids[first + 1 :], runs=()), "image 0 of 2"),
        "images swapped": (replace(good, grids=good.grids.flip(0)), "image 0 of 2"),
        "a stray pad": (replace(good, ids=[*ids, rollouts.vision(folder).image]), "without vision_start"),
        "no image at all": (Asked(ids), "and no image came with them"),
    }


def test_a_mistake_is_an_invalid_argument_and_the_server_goes_on(folder: Path, patched: Server) -> None:
    for name, (asked, message) in mistakes(folder).items():
        answer = over_grpc.ask(patched, asked)
        assert answer.code == "INVALID_ARGUMENT", (name, answer)
        assert message in answer.message, name
    good = preprocessed(folder, "one")
    assert error(folder, good, over_grpc.ask(patched, good, ANSWER_TOKENS)) < shapes.NOISE


def test_stock_serves_a_mistake(folder: Path, stock: Server) -> None:
    for name in ("images swapped", "no image at all"):
        asked, _ = mistakes(folder)[name]
        assert over_grpc.ask(stock, asked).code == "OK", name


@pytest.mark.parametrize("missing", ["runs", "more"])
def test_stock_ends_over_what_is_left_out(folder: Path, missing: str) -> None:
    bare = replace(preprocessed(folder, "one"), **{missing: {} if missing == "more" else ()})
    with over_grpc.serve(folder, shapes.STOCK) as running:
        assert over_grpc.ask(running, bare).code == "UNAVAILABLE"
        assert running.process.wait(server.STOP_SECONDS) != 0


def test_the_rust_servicer(folder: Path) -> None:
    """Asked for by a variable; up to smg-grpc-servicer 0.13.5 there is none."""
    if not (over_grpc.layer() / "smg_grpc_servicer/sglang/rust.py").exists():
        pytest.skip("this servicer has no part in Rust")
    env = over_grpc.beside({**shapes.PATCHED, "SMG_SGLANG_SERVICER_IMPL": "rust"})
    code, log = server.expect_failure(folder, env=env, args=["--grpc-mode"])
    assert code != 0
    assert "would be served over gRPC by the Rust servicer" in log
