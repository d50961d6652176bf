"""``--skip-tokenizer-init``, as trainers run an engine: ids go in and ids come out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import BAD, SHAPES
from tests.lab import client, processors, server
from tests.lab.server import Server


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    with server.serve(folder, env=shapes.PATCHED, args=["--skip-tokenizer-init"]) as started:
        yield started


def test_stock_fails_on_what_a_rollout_sends(folder: Path) -> None:
    """The processor that such a server builds: 0.5.12.post1 drifts, 0.5.23 takes each pad for an image."""
    processor = processors.build(folder, skip_tokenizer_init=True)
    sent = SHAPES["expanded, drifted between"](folder)
    assert isinstance(sent.prompt, list)
    try:
        ids = processors.process(processor, sent.prompt, sent.images).input_ids
    except (AssertionError, IndexError, RuntimeError):
        return
    assert ids != sent.expected_ids


@pytest.mark.parametrize("name", ["short, drifted", "expanded", "expanded, drifted between"])
def test_exact(name: str, folder: Path, running: Server) -> None:
    shapes.assert_served(folder, running, SHAPES[name](folder))


def test_refused(folder: Path, running: Server) -> None:
    shapes.assert_refused(running, BAD["a pad missing"](folder))
    shapes.assert_refused(running, BAD["pads and no image at all"](folder))


def test_text_is_refused_by_sglang(folder: Path, running: Server) -> None:
    answer = client.generate(running.url, "Where is the cup?", timeout=shapes.ANSWER_SECONDS)
    assert answer.status == 400
    assert "skip_tokenizer_init=True cannot accept text prompts" in answer.body["error"]["message"]


def test_announced(running: Server, release: str) -> None:
    shapes.assert_announced(running, release)
