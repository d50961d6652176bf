"""slime and Relax, which are on no package index: their requests, sent by a client of ours.

``recorded`` has what stands around ids and images. Both keep one list of ids: the HF processor expands the
images of a prompt or an observation, and what was sampled is appended as it is. Each turn sends all ids and
all images so far. With router replay, Relax also asks for experts: tests/e2e/test_routed_experts.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.shapes import TURNS
from tests.frameworks import judging
from tests.frameworks.judging import PICTURES, Played
from tests.frameworks.wire import Wire
from tests.lab import client, reference
from tests.lab.episodes import Episode
from tests.sglang import rollouts

RECORDED = {
    path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "recorded").iterdir()
}


def play(recorded: dict[str, Any], folder: Path, wire: Wire) -> Played:
    """Three turns, ended by the first failure; the last one has no image of its own."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for turn, words in enumerate((*TURNS[:2], TURNS[2].replace(rollouts.IMAGE, ""))):
        new = reference.expand(folder, words, PICTURES[turn : turn + 1]).input_ids
        images = [recorded["image"] + client.as_base64(image) for image in PICTURES[: turn + 1]]
        ids, mask, logprobs = [*ids, *new], [*mask, *[0] * len(new)], [*logprobs, *[0.0] * len(new)]
        answer = client.ask(wire.url, {**recorded["request"], "input_ids": ids, "image_data": images})
        if answer.status != 200:
            break
        ids, mask = [*ids, *answer.output_ids], [*mask, *[1] * len(answer.output_ids)]
        logprobs += answer.logprobs
    return Episode(ids, mask, logprobs), wire.take()


@pytest.mark.parametrize("name", RECORDED)
def test_patched(name: str, folder: Path, to_patched: Wire) -> None:
    episode, asked = judging.until_drifted(folder, lambda: play(RECORDED[name], folder, to_patched))
    assert [len(exchange.images) for exchange in asked] == [1, 2, 2]
    judging.assert_same_ids(folder, episode, asked, PICTURES)
    judging.assert_exact(folder, episode, PICTURES)


@pytest.mark.parametrize("name", RECORDED)
def test_stock(name: str, folder: Path, to_stock: Wire) -> None:
    """The first request fails."""
    _, asked = play(RECORDED[name], folder, to_stock)
    assert [exchange.status for exchange in asked] == [500]
