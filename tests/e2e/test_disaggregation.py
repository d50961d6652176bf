"""Encoder disaggregation: one server makes the embeddings, another has the language model.

Run with ``zmq_to_scheduler``, SGLang's default, where stock 0.5.12.post1 ends. ``zmq_to_tokenizer`` and other
releases run in one process, on the same classes of SGLang's (tests/sglang/test_disaggregation.py).
"""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import BAD, SHAPES
from tests.e2e.test_videos import ask, decodes_without_a_gpu
from tests.lab import reference, server
from tests.lab.server import Server
from tests.sglang import films
from tests.sglang.films import SCENES, Scene

BACKEND = ["--encoder-transfer-backend", "zmq_to_scheduler"]
END_SECONDS = 60
# By the encoder itself, in its own words; and only with --allow-auto-truncate.
NOT_OURS = ("an image that cannot be decoded", "ids that SGLang cuts to the context length")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Iterator[Server]:
    """Without the switch: no request's ids come here."""
    with server.serve(folder, env=shapes.STOCK, args=["--encoder-only", *BACKEND]) as running:
        yield running


def language_model(
    folder: Path, encoder: Server, env: dict[str, str | None]
) -> AbstractContextManager[Server]:
    args = ["--language-only", "--encoder-urls", encoder.url, *BACKEND]
    return server.serve(folder, env={**env, "LAB_TENSORS_STAY": "1"}, args=args)


@pytest.fixture(scope="module")
def patched(folder: Path, encoder: Server) -> Iterator[Server]:
    with language_model(folder, encoder, dict(shapes.PATCHED)) as running:
        yield running


@pytest.mark.parametrize("name", SHAPES)
def test_served(name: str, folder: Path, encoder: Server, patched: Server) -> None:
    before = encodings(encoder)
    shapes.assert_served(folder, patched, SHAPES[name](folder))
    assert encodings(encoder) == before + 1, "the embeddings are the encoder's"


def encodings(encoder: Server) -> int:
    return encoder.log_text().count('"POST /encode HTTP/1.1" 200')


@pytest.mark.parametrize("name", [name for name in BAD if name not in NOT_OURS])
def test_refused(name: str, folder: Path, patched: Server) -> None:
    shapes.assert_refused(patched, BAD[name](folder))


NEEDS_GPU = pytest.mark.skipif(not decodes_without_a_gpu(), reason="this release's decoder needs a GPU")


@NEEDS_GPU
@pytest.mark.parametrize("shape", ["expanded", "drifted", "short"])
def test_videos_are_served(shape: str, folder: Path, encoder: Server, patched: Server) -> None:
    """On the frames that the encoder takes, which are those of SGLang."""
    scene, before = SCENES["videos among images"], encodings(encoder)
    request = films.SHAPES[shape](folder, films.of_server(folder, scene))
    answer = ask(patched.url, request.ids, scene)
    assert answer.status == 200, answer.body
    assert encodings(encoder) > before, "the embeddings are the encoder's"
    assert answer.prompt_tokens == len(request.expected_ids)
    scores, shortfalls = reference.scores(
        folder,
        request.expected_ids,
        request.grids,
        request.pixels,
        answer.output_ids,
        request.video_grids,
        request.video_pixels,
    )
    errors = [abs(ours - theirs) for ours, theirs in zip(answer.logprobs, scores.tolist(), strict=True)]
    assert len(errors) == shapes.NEW_TOKENS
    assert max(errors) < shapes.NOISE
    assert float(shortfalls.max()) < 2 * shapes.NOISE
    print(f"videos, {shape}: {answer.prompt_tokens} tokens, log-probs off by {max(errors):.5f} at most")


@NEEDS_GPU
def test_another_clip_is_refused(folder: Path, patched: Server) -> None:
    request = films.of_server(folder, SCENES["one video"])
    answer = ask(patched.url, request.ids, Scene("", SCENES["two videos"].clips[1:], []))
    assert answer.status == 400, answer.body
    assert "video 0 of 1: input_ids hold" in answer.body["error"]["message"]


def test_announced(encoder: Server, patched: Server, release: str) -> None:
    """The scheduler has a processor of its own, which is where ids and embeddings meet."""
    shapes.assert_announced(patched, release)
    assert len(shapes.announcements(patched)) == 2
    assert not shapes.announcements(encoder)


def test_stock(folder: Path, encoder: Server) -> None:
    """0.5.12.post1 hands no ids to the processor; 0.5.23 does, and answers expanded ones with HTTP 500."""
    with language_model(folder, encoder, dict(shapes.STOCK)) as running:
        shapes.assert_served(folder, running, SHAPES["text"](folder))
        try:
            answer = shapes.ask(running.url, SHAPES["expanded"](folder))
        except (ConnectionError, urllib.error.URLError):
            running.process.wait(END_SECONDS)
            assert "in _try_recv_mm_data" in running.log_text()
        else:
            assert answer is not None
            assert answer.status == 500
            if decodes_without_a_gpu():
                made = films.of_server(folder, SCENES["one video"])
                assert ask(running.url, made.ids, made.scene).status == 500
