"""Several samples of one request (``n`` in its sampling parameters), as GRPO asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import SHAPES, Sent
from tests.lab import client, server
from tests.lab.client import Answer
from tests.lab.server import Server

SAMPLES = 3


def samples(url: str, sent: Sent) -> list[Answer]:
    body: dict[str, Any] = {
        "text" if isinstance(sent.prompt, str) else "input_ids": sent.prompt,
        "image_data": [[client.as_base64(image) for image in sent.images]],  # of a batch of one prompt
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": shapes.NEW_TOKENS,
            "ignore_eos": True,
            "n": SAMPLES,
        },
        "return_logprob": True,
    }
    status, text = client.post(f"{url}/generate", body, shapes.ANSWER_SECONDS)
    assert status == 200, text
    return [client.read(status, row) for row in json.loads(text)]


@pytest.mark.parametrize("shape", ["text", "expanded, drifted between"])
def test_each_is_exact(shape: str, folder: Path, patched: Server) -> None:
    sent = SHAPES[shape](folder)
    answers = samples(patched.url, sent)
    assert len(answers) == SAMPLES
    for answer in answers:
        verdict = shapes.judge(folder, sent, answer)
        assert verdict.exact, verdict


def test_stock_ends(folder: Path, release: str) -> None:
    if release != "0.5.12.post1":
        pytest.skip("0.5.9 - 0.5.12.post1 end; later releases give each sample its images")
    with server.serve(folder, env=shapes.STOCK) as running:
        with pytest.raises(ConnectionError):
            samples(running.url, SHAPES["text"](folder))
        assert running.process.wait(60) != 0
        assert "No such file or directory: '/psm_" in running.log_text()
