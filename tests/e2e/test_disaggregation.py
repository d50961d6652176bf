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

from tests.e2e import shapes, test_videos
from tests.e2e.shapes import BAD, SHAPES
from tests.lab import server
from tests.lab.server import Server
from tests.sglang import films
from tests.sglang.films import SCENES

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


@test_videos.pytestmark
@pytest.mark.parametrize("shape", test_videos.SHAPES)
def test_videos_are_served(shape: str, folder: Path, encoder: Server, patched: Server) -> None:
    """On the frames that the encoder takes, which are those of SGLang."""
    before = encodings(encoder)
    request = films.SHAPES[shape](folder, films.of_server(folder, SCENES["videos among images"]))
    test_videos.assert_served(folder, patched, request, f"videos, {shape}")
    assert encodings(encoder) > before, "the embeddings are the encoder's"


@test_videos.pytestmark
def test_another_clip_is_refused(folder: Path, patched: Server) -> None:
    test_videos.assert_another_clip_is_refused(patched, films.of_server(folder, SCENES["one video"]))


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
            if test_videos.decodes_without_a_gpu():
                made = films.of_server(folder, SCENES["one video"])
                assert test_videos.ask(running.url, made.ids, made.scene).status == 500
