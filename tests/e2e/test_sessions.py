"""Sessions with images over HTTP: every turn beside transformers on the joined ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import Sent
from tests.lab import client, reference, server
from tests.lab.client import Answer
from tests.lab.server import Server
from tests.sglang import rollouts
from tests.sglang.rollouts import IMAGE

# Whether each turn has an image.
SHAPES = {"an image, text, an image": (1, 0, 1), "text, an image": (0, 1)}


def play(folder: Path, url: str, shape: str, form: str) -> Iterator[tuple[Sent, Answer]]:
    """The turns of a session; each request holds its own turn alone. ``form``: expanded, short or text."""
    _, name = client.post(f"{url}/open_session", {"capacity_of_str_len": 10**5})
    ids: list[int] = []
    images: list[Any] = []
    last = None
    for turn, with_image in enumerate(SHAPES[shape]):
        new = [rollouts.picture(448, 224, seed=200 + turn)] if with_image else []
        words = f"<|im_start|>user\n{shape}, {turn}: {IMAGE if new else ''}and?<|im_end|>\n"
        expanded = reference.expand(folder, words, new).input_ids
        ids, images = [*ids, *expanded], [*images, *new]
        request: dict[str, Any] = {
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": shapes.NEW_TOKENS,
                "ignore_eos": True,
            },
            "return_logprob": True,
            "session_params": {"id": json.loads(name), "rid": last},
        }
        if form == "text":
            request["text"] = words
        else:
            request["input_ids"] = expanded if form == "expanded" else rollouts.tokenize(folder, words)
        if new:
            request["image_data"] = [client.as_base64(image) for image in new]
        answer = client.ask(url, request, shapes.ANSWER_SECONDS)
        yield Sent(ids, list(images), ids), answer
        if answer.status != 200:
            return
        ids, last = [*ids, *answer.output_ids], answer.body["meta_info"]["id"]


@pytest.mark.parametrize("form", ["expanded", "short", "text"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_turn_is_exact(shape: str, form: str, folder: Path, patched: Server, release: str) -> None:
    if release == "0.5.3":
        pytest.skip("no request can name the turn before: tests/sglang/test_sessions.py has the refusal")
    turns = list(play(folder, patched.url, shape, form))
    assert len(turns) == len(SHAPES[shape])
    for sent, answer in turns:
        assert answer.status == 200, answer.body
        verdict = shapes.judge(folder, sent, answer)
        assert verdict.exact, verdict


def test_stock(folder: Path, release: str) -> None:
    """A server of its own, because it may end: in the turn of text it is wrong, and then it ends."""
    if release != "0.5.12.post1":
        pytest.skip("one release in which positions are not joined will do")
    with server.serve(folder, env=shapes.STOCK) as running:
        turns = play(folder, running.url, "an image, text, an image", "text")
        assert shapes.judge(folder, *next(turns)).exact
        verdict = shapes.judge(folder, *next(turns))
        assert verdict.status == 200
        assert (verdict.error or 0) > shapes.WRONG
        with pytest.raises(ConnectionError):
            next(turns)
        assert running.process.wait(60) != 0
