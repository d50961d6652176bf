"""A policy that samples placeholders: stock loses its episodes; with ``sampling`` or a recipe it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e import shapes
from tests.e2e.shapes import TURNS, Sent
from tests.lab import client, policies, reference, server
from tests.lab.server import Server

TOKENS = 24
SAMPLED = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}


@pytest.fixture(scope="module")
def policy() -> Path:
    return policies.ensure()


@pytest.fixture(scope="module")
def usual(policy: Path) -> Iterator[Server]:
    with server.serve(policy, env=shapes.PATCHED) as running:
        yield running


@pytest.fixture(scope="module")
def forbidding(policy: Path) -> Iterator[Server]:
    switch = {**shapes.STOCK, "DEEPEYES_PATCH": "processor,mrope,sampling"}
    with server.serve(policy, env=switch) as running:
        yield running


def bias(folder: Path) -> dict[str, float]:
    return {str(token): -100.0 for token in policies.placeholders(folder)}


def episode(folder: Path, running: Server, **more: Any) -> list[tuple[Sent, client.Answer]]:
    """Up to three turns of an agent, ended by the first refusal."""
    ids: list[int] = []
    turns = []
    for turn, words in enumerate(TURNS):
        images = shapes.PICTURES[: turn + 1]
        ids = [*ids, *reference.expand(folder, words, images[-1:]).input_ids]
        answer = client.generate(
            running.url, ids, images, max_new_tokens=TOKENS, sampling={**SAMPLED, **more}
        )
        turns.append((Sent(ids, images, ids), answer))
        if answer.status != 200:
            break
        ids = [*ids, *answer.output_ids]
    return turns


def off(folder: Path, sent: Sent, answer: client.Answer, without: list[int]) -> float:
    """How far the log-probs are from ``transformers``, with some tokens taken out of the distribution."""
    ids = [*sent.expected_ids, *answer.output_ids]
    rows = reference.distributions(folder, ids, *shapes.media(folder, sent.images))
    rows = rows[len(sent.expected_ids) - 1 : -1].clone()
    rows[:, without] = -torch.inf
    rows = rows.log_softmax(dim=-1)
    scores = rows.gather(1, torch.tensor(answer.output_ids)[:, None])[:, 0]
    return float((torch.tensor(answer.logprobs) - scores).abs().max())


def assert_forbidden(folder: Path, turns: list[tuple[Sent, client.Answer]]) -> None:
    """Three turns without a placeholder; the log-probs are those of what was sampled from."""
    tokens = policies.placeholders(folder)
    assert [answer.status for _, answer in turns] == [200, 200, 200]
    for sent, answer in turns:
        assert answer.prompt_tokens == len(sent.expected_ids)
        assert len(answer.output_ids) == TOKENS
        assert not set(tokens) & set(answer.output_ids)
        assert off(folder, sent, answer, tokens) < shapes.NOISE
        assert off(folder, sent, answer, []) > 10 * shapes.WRONG


def test_it_samples_them(policy: Path, usual: Server) -> None:
    """The next turn is refused, and the message says where the placeholder is."""
    (_, first), (_, second), *_ = episode(policy, usual)
    assert set(policies.placeholders(policy)) & set(first.output_ids)
    assert second.status == 400
    assert "input_ids hold" in second.body["error"]["message"]


def test_the_switch_forbids_them(policy: Path, forbidding: Server) -> None:
    assert_forbidden(policy, episode(policy, forbidding))


def test_a_bias_of_the_request_stays(policy: Path, forbidding: Server) -> None:
    """The caller's own bias counts for all other tokens, and cannot bring a placeholder back."""
    wish = 200
    image = policies.placeholders(policy)[0]
    answer = client.generate(
        forbidding.url,
        reference.expand(policy, TURNS[0], shapes.PICTURES[:1]).input_ids,
        shapes.PICTURES[:1],
        sampling={"logit_bias": {str(wish): 50.0, str(image): 90.0}},
    )
    assert answer.status == 200, answer.body
    assert set(answer.output_ids) == {wish}


def test_text_prompts_stay_as_they_are(policy: Path, forbidding: Server) -> None:
    answer = client.generate(forbidding.url, TURNS[0], shapes.PICTURES[:1], max_new_tokens=TOKENS)
    assert answer.status == 200, answer.body
    assert set(policies.placeholders(policy)) & set(answer.output_ids)


def test_the_recipe_forbids_them(policy: Path, usual: Server) -> None:
    """``logit_bias`` in the request, as the recipes have it."""
    assert_forbidden(policy, episode(policy, usual, logit_bias=bias(policy)))


def test_an_option_of_sglang_forbids_them(policy: Path) -> None:
    """For every request that has no ``logit_bias`` of its own."""
    args = ["--preferred-sampling-params", json.dumps({"logit_bias": bias(policy)})]
    with server.serve(policy, env=shapes.PATCHED, args=args) as running:
        assert_forbidden(policy, episode(policy, running))
