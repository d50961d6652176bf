"""Rollout -> train step -> weights to the server, three times, and nothing lost between trainer and engine.

``make smoke`` runs this on three releases and shows the tables. Both sides compute in float32. What remains
is rounding, and a wrong position, a wrong id or an old weight is far beyond that, in every single token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e import shapes
from tests.e2e.rollout import environment, loop, table, trainer
from tests.e2e.rollout.agent import Agent, Engine
from tests.e2e.rollout.loop import TOLERANCE, Round
from tests.lab import client, flags, reference, samples, server
from tests.sglang import rollouts

# Of a log-prob in float32. About 1e-6 is seen; bf16 would need the 5e-3 of `loop.TOLERANCE`, and more.
ROUNDING = 1e-4

ARGS = ["--dtype", "float32", "--random-seed", "7"]

# What stock SGLang makes of one placeholder an image, when the history holds ids that were sampled: other
# tokens, the right ones, or (see test_rope.py) any tokens with wrong positions.
STOCK_SHORT = {"0.5.3": "drifts", "0.5.12.post1": "drifts", "0.5.23": "exact"}
STOCK_EXPANDED = {"0.5.3": "drifts", "0.5.12.post1": "HTTP 500", "0.5.23": "HTTP 500"}


@dataclass(frozen=True)
class Patched:
    rounds: list[Round]
    forced: loop.Trajectory


@dataclass(frozen=True)
class Stock:
    """``stale``: how far a picture and its twin are apart, before an update and after it."""

    expanded: Round
    short: Round
    stale: tuple[float, float]


@pytest.fixture(scope="module")
def processor(folder: Path) -> Any:
    return reference.processor(folder)


@pytest.fixture(scope="module")
def patched(folder: Path, processor: Any, tmp_path_factory: pytest.TempPathFactory) -> Patched:
    with server.serve(folder, env=shapes.PATCHED, args=ARGS) as running:
        engine = Engine(running.url)
        rounds = list(loop.train(engine, processor, folder, tmp_path_factory.mktemp("checkpoint")))
        show("patched", rounds)
        # What a random model does once in a thousand tokens.
        marker = rollouts.vision(folder).image
        forced = Agent(engine, processor).play(environment.draw(0), logit_bias={str(marker): 100.0})
    return Patched(rounds, forced)


@pytest.fixture(scope="module")
def stock(folder: Path, processor: Any, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    with server.serve(folder, env=shapes.STOCK, args=ARGS) as running:
        expanded = loop.sample(Engine(running.url), processor, folder, "expanded ids")
        engine = loop.OnePlaceholder(running.url, rollouts.vision(folder).image)
        short = loop.sample(engine, processor, folder, "one placeholder an image")
        show("stock", [expanded, short])
        before = seen_beside_unseen(running.url, bit=1)
        engine.load(changed(folder, tmp_path_factory.mktemp("changed")))
        after = seen_beside_unseen(running.url, bit=2)
    return Stock(expanded, short, (before, after))


def show(name: str, rounds: list[Round]) -> None:
    """On the screen with ``-s``, as `make smoke` has it."""
    print(f"\nSGLang {flags.installed().version}, {name}", *table.lines(rounds), sep="\n", flush=True)


# --- patched ------------------------------------------------------------------------------------------


def test_three_steps_and_a_last_look(patched: Patched) -> None:
    names = [one.name for one in patched.rounds]
    assert names == ["step 1", "step 2", "step 3", "after"]
    for one in patched.rounds:
        assert len(one.trajectories) == len(loop.TASKS) * loop.GROUP
        assert [done.refusal for done in one.trajectories] == [None] * len(one.trajectories)
        # Otherwise this would be no test of several turns.
        assert max(number for number, *_ in loop.turns(one)) == environment.MAX_TURNS


def test_every_turn_saw_the_ids_of_the_trainer(patched: Patched) -> None:
    for one in patched.rounds:
        for number, turn, _ in loop.turns(one):
            assert turn.prompt_tokens == turn.start, (one.name, number)


def test_tokenizing_again_would_have_changed_them(patched: Patched, processor: Any) -> None:
    for one in patched.rounds:
        drifts = [loop.drift(processor, done) for done in one.trajectories]
        # An episode of one short answer can be canonical by chance.
        assert sum(lost is not None for lost in drifts) > len(drifts) / 2, (one.name, drifts)


def test_every_log_prob_is_the_trainers(patched: Patched) -> None:
    for one in patched.rounds:
        for number, turn, off in loop.turns(one):
            assert len(off) == turn.stop - turn.start > 0
            assert float(off.abs().max()) < ROUNDING, (one.name, number, off)
        assert not any(map(loop.is_lost, one.trajectories, one.differences))


def test_each_step_trains(patched: Patched) -> None:
    *steps, after = patched.rounds
    assert after.gradient is None
    for one in steps:
        assert one.gradient is not None
        assert 0 < one.gradient < float("inf")  # no NaN either


def test_the_server_has_the_weights_of_each_step(patched: Patched) -> None:
    """Its log-probs are the new weights', and nothing like those of the weights before the step."""
    first, *others = patched.rounds
    assert first.moved is None
    for one in others:
        assert one.moved is not None
        moved = torch.cat(one.moved).abs()
        assert float(moved.mean()) > 10 * TOLERANCE, one.name
        assert float((moved < TOLERANCE).float().mean()) < 0.2, one.name
        assert float(torch.cat(one.differences).abs().max()) < ROUNDING, one.name


def test_a_sampled_placeholder_ends_the_episode(patched: Patched, folder: Path) -> None:
    """It stays in the ids as the last token; nothing is sent after it, and the trainer can still score it."""
    done = patched.forced
    (turn,) = done.turns
    assert done.placeholder
    assert done.ids[turn.start :] == [rollouts.vision(folder).image]
    assert done.refusal is None
    model = trainer.Trainer(folder, loop.LEARNING_RATE).model
    found = trainer.score(model, done)
    assert found.shape == (1,)
    assert bool(found.isfinite().all())


# --- stock --------------------------------------------------------------------------------------------


def test_stock_loses_every_sample_with_expanded_ids(stock: Stock, release: str) -> None:
    one = stock.expanded
    assert all(map(loop.is_lost, one.trajectories, one.differences))
    if STOCK_EXPANDED[release] == "HTTP 500":
        assert {done.refusal.status for done in one.trajectories if done.refusal} == {500}
        assert not any(done.turns for done in one.trajectories)
    else:
        assert_drifts(one)


def test_stock_with_one_placeholder_an_image(stock: Stock, release: str) -> None:
    one = stock.short
    if STOCK_SHORT[release] == "exact":
        assert not any(map(loop.is_lost, one.trajectories, one.differences))
    else:
        assert_drifts(one)


def assert_drifts(one: Round) -> None:
    """From the second turn on, the model has seen other tokens than the trainer holds."""
    later = [(turn, off) for number, turn, off in loop.turns(one) if number > 1]
    assert later
    drifted = [off for turn, off in later if turn.prompt_tokens != turn.start]
    assert len(drifted) > len(later) / 2
    assert float(torch.cat(drifted).abs().max()) > shapes.WRONG
    assert any(map(loop.is_lost, one.trajectories, one.differences))


def test_stock_keeps_features_of_old_weights(stock: Stock) -> None:
    """A picture seen before an update is not looked at again: with another last bit, it is."""
    before, after = stock.stale
    assert before < TOLERANCE
    assert after > shapes.WRONG


def seen_beside_unseen(url: str, bit: int) -> float:
    """How far apart the log-probs of the same tokens are, for a picture and for it with one bit changed.

    With another ``bit`` each time, the second of the two is always new to the server. Asked as text, and
    one token long, so that this is about the picture alone.
    """
    picture = samples.picture(448, 224)
    twin = picture.copy()
    red, green, blue = twin.getpixel((0, 0))
    twin.putpixel((0, 0), (red ^ bit, green, blue))
    answers = [
        client.generate(
            url, samples.prompt(1), [image], max_new_tokens=1, token_ids_logprob=list(range(100, 200))
        )
        for image in (picture, twin)
    ]
    ours, theirs = (
        torch.tensor([row[0] for row in answer.body["meta_info"]["output_token_ids_logprobs"][0]])
        for answer in answers
    )
    return float((ours - theirs).abs().max())


def changed(folder: Path, checkpoint: Path) -> Path:
    """A checkpoint whose vision tower has moved, as by training."""
    learner = trainer.Trainer(folder, loop.LEARNING_RATE)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in learner.model.parameters():
            weight.add_(0.1 * weight.std() * torch.randn(weight.shape, generator=generator))
    return learner.save(checkpoint)
