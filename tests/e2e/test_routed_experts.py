"""``return_routed_experts``: the experts that a server picked, for a trainer that replays them.

A tiny Qwen3-VL-MoE on real servers, in float32. Stock gets the requests of the patched server's episodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.e2e import experts, shapes
from tests.e2e.experts import SPELLINGS, Asked
from tests.e2e.test_rollout import STOCK
from tests.lab import moe, reference, server
from tests.lab.client import Answer
from tests.lab.server import Server
from tests.sglang import rollouts

Turns = list[tuple[Asked, Answer]]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The tiny Qwen3-VL-MoE."""
    return moe.ensure()


def serve(folder: Path, env: dict[str, str | None]) -> AbstractContextManager[Server]:
    args = ["--dtype", "float32", "--enable-return-routed-experts", "--random-seed", "5"]
    return server.serve(folder, env={**env, "LAB_PAGEABLE": "1"}, args=args)


@dataclass(frozen=True)
class Played:
    """What the patched server answered.

    ``together``: the last turns of all episodes again, at the same time. ``streamed``: that of one episode
    again. ``tail``: the same with the rows from ``start`` on alone.
    """

    episodes: dict[str, Turns]
    together: Turns
    streamed: tuple[Asked, Answer]
    tail: tuple[Asked, Answer]
    start: int


@pytest.fixture(scope="module")
def played(folder: Path) -> Played:
    with serve(folder, dict(shapes.PATCHED)) as running:
        episodes = {name: list(experts.episode(folder, running.url, name)) for name in SPELLINGS}
        last = [turns[-1][0] for turns in episodes.values()]
        with ThreadPoolExecutor(len(last)) as pool:
            answers = list(pool.map(lambda asked: experts.ask(folder, running.url, asked), last))
        *_, before, (asked, _) = episodes["short, drifted"]
        streamed = experts.ask(folder, running.url, asked, stream=True)
        start = experts.due(*before)
        tail = experts.ask(folder, running.url, asked, routed_experts_start_len=start)
    return Played(episodes, list(zip(last, answers, strict=True)), (asked, streamed), (asked, tail), start)


@pytest.fixture(scope="module")
def replayed(folder: Path, played: Played) -> dict[str, Turns]:
    """What stock answers to the requests of the same episodes."""
    with serve(folder, dict(shapes.STOCK)) as running:
        return {
            name: [(asked, experts.ask(folder, running.url, asked)) for asked, _ in turns]
            for name, turns in played.episodes.items()
        }


def assert_right(folder: Path, asked: Asked, answer: Answer, start: int = 0) -> None:
    assert answer.status == 200, answer.body
    assert answer.prompt_tokens == len(asked.expected_ids)
    verdict = experts.judge(folder, asked, answer, start)
    assert verdict.right, verdict


def is_canonical(folder: Path, ids: list[int]) -> bool:
    """Whether their text has these ids when it is tokenized."""
    tokenizer = reference.processor(folder).tokenizer
    # A model has more rows than its tokenizer has tokens, and samples them too; they have no text.
    return max(ids) < len(tokenizer) and rollouts.tokenize(folder, tokenizer.decode(ids)) == ids


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_patched_returns_the_experts_of_transformers(spelling: str, folder: Path, played: Played) -> None:
    turns = played.episodes[spelling]
    assert len(turns) == len(experts.TURNS), turns[-1][1].body
    for asked, answer in turns:
        assert_right(folder, asked, answer)
    # The rows of earlier turns were kept beside their keys and values, and come from there.
    for before, (_, answer) in itertools.pairwise(turns):
        assert answer.body["meta_info"]["cached_tokens"] == experts.due(*before)


def test_requests_at_the_same_time(folder: Path, played: Played) -> None:
    for asked, answer in played.together:
        assert_right(folder, asked, answer)


def test_a_stream(folder: Path, played: Played) -> None:
    """They come with the last chunk, which SGLang sends when the request is done."""
    asked, answer = played.streamed
    assert len(answer.chunks) > 1
    assert_right(folder, asked, answer)


def test_rows_of_the_last_turn_alone(folder: Path, played: Played) -> None:
    assert_right(folder, *played.tail, played.start)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_stock(spelling: str, folder: Path, replayed: dict[str, Turns], release: str) -> None:
    """500 for expanded ids. Where it decodes short ids and tokenizes the text again: rows of other tokens."""
    turns = replayed[spelling]
    assert len(turns) == len(experts.TURNS)
    if spelling.startswith("expanded"):
        assert [answer.status for _, answer in turns] == [STOCK[release]["expanded"]] * len(turns)
        return
    drifts = STOCK[release]["short, drifted"] != "right"
    for asked, answer in turns:
        assert answer.status == 200, answer.body
        verdict = experts.judge(folder, asked, answer)
        assert verdict.right == (is_canonical(folder, asked.expected_ids) or not drifts), verdict
    if drifts and spelling == "short, regrouped":
        # Nothing tells a trainer: HTTP 200, and as many rows as it expects.
        first = experts.judge(folder, *turns[0])
        assert first.rows == first.due
        assert first.wrong


# --- the tests can fail -------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", [name for name in SPELLINGS if "," in name])
def test_the_drifted_episodes_drift(spelling: str, folder: Path, played: Played) -> None:
    for asked, _ in played.episodes[spelling]:
        assert not is_canonical(folder, asked.expected_ids)


def _another_picture(folder: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Asked:
    first, *others = asked.images
    return replace(asked, images=[rollouts.picture(*first.size, seed=9), *others])


def _one_token_more(folder: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """As many tokens, all but the first one place later."""
    first, *others = asked.expected_ids
    return replace(asked, expected_ids=[first, first, *others[:-1]])


def _positions_of_text(folder: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setattr(
        reference, "positions", lambda folder, ids, *grids: (torch.arange(len(ids)).expand(3, -1), 0)
    )
    return asked


@pytest.mark.parametrize("change", [_another_picture, _one_token_more, _positions_of_text])
def test_the_experts_depend_on_it(
    change: Callable[[Path, Asked, pytest.MonkeyPatch], Asked],
    folder: Path,
    played: Played,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answer = played.episodes["expanded"][1]
    verdict = experts.judge(folder, change(folder, asked, monkeypatch), answer)
    assert verdict.rows == verdict.due
    assert verdict.wrong
    assert verdict.wrong > 0.05 * verdict.rows * moe.LAYERS, verdict
