"""Rollout, train step, weights to the server, and again; with the log-probs of both sides for every token."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image

from tests.e2e.rollout import environment, trainer
from tests.e2e.rollout.agent import Agent, Engine, Generated, Trajectory, Turn
from tests.e2e.rollout.trainer import Trainer

STEPS = 3
# The same in every step: whatever a server keeps of a prompt or a picture beyond an update of its weights
# would be used.
TASKS = (0, 1)
GROUP = 3
LEARNING_RATE = 5e-3
TOLERANCE = 5e-3  # of a log-prob; a sample with one token beyond is lost to the trainer


@dataclass(frozen=True)
class Round:
    """A rollout on the server as it was then.

    ``differences`` [N] for each trajectory: the trainer's log-prob of each sampled token less the server's.
    ``moved``: the same, but for the weights before the last step. ``gradient``: the norm in the step after
    this rollout. Both None where there is no such step.
    """

    name: str
    trajectories: list[Trajectory]
    differences: list[torch.Tensor]
    moved: list[torch.Tensor] | None = None
    gradient: float | None = None


class OnePlaceholder(Engine):
    """Sends every image as one placeholder and leaves its expansion to the server, as SGLang asks for."""

    def __init__(self, url: str, placeholder: int) -> None:
        super().__init__(url)
        self._placeholder = placeholder

    def generate(self, ids: Sequence[int], images: Sequence[Image], sampling: dict[str, Any]) -> Generated:
        runs = itertools.groupby(ids)
        short = [i for token, run in runs for i in ([token] if token == self._placeholder else run)]
        return super().generate(short, images, sampling)


def train(engine: Engine, processor: Any, folder: Path, checkpoint: Path) -> Iterator[Round]:
    """`STEPS` steps, and a last rollout on the weights of the last one. Needs a server with our ids."""
    learner, agent = Trainer(folder, LEARNING_RATE), Agent(engine, processor)
    before: Any = None
    for step in range(1, STEPS + 2):
        engine.load(learner.save(checkpoint))
        groups = [[agent.play(environment.draw(task)) for _ in range(GROUP)] for task in TASKS]
        done = [one for group in groups for one in group]
        found = differences(learner.model, done)
        moved = None if before is None else differences(before, done)
        if step > STEPS:
            yield Round("after", done, found, moved)
            return
        before = copy.deepcopy(learner.model)
        yield Round(f"step {step}", done, found, moved, learner.step(groups))


def sample(engine: Engine, processor: Any, folder: Path, name: str) -> Round:
    """One rollout without a step, on a server that has the weights in ``folder``."""
    learner, agent = Trainer(folder, LEARNING_RATE), Agent(engine, processor)
    done = [agent.play(environment.draw(task)) for task in TASKS for _ in range(GROUP)]
    return Round(name, done, differences(learner.model, done))


def differences(model: Any, trajectories: Sequence[Trajectory]) -> list[torch.Tensor]:
    found = []
    for done in trajectories:
        server = torch.tensor([score for turn in done.turns for score in turn.logprobs])
        with torch.inference_mode():
            found.append(trainer.score(model, done) - server if done.turns else server)
    return found


def turns(one: Round) -> Iterator[tuple[int, Turn, torch.Tensor]]:
    """(number from 1 on, turn, its differences [n]) of every answer."""
    for done, found in zip(one.trajectories, one.differences, strict=True):
        pieces = found.split([turn.stop - turn.start for turn in done.turns])
        for number, (turn, piece) in enumerate(zip(done.turns, pieces, strict=True), start=1):
            yield number, turn, piece


def is_lost(done: Trajectory, found: torch.Tensor) -> bool:
    """Whether a trainer has to throw this sample away."""
    exact = all(turn.prompt_tokens == turn.start for turn in done.turns)
    return done.refusal is not None or not exact or not bool((found.abs() < TOLERANCE).all())


def drift(processor: Any, done: Trajectory) -> int | None:
    """By how many tokens the ids change if their text is tokenized again; None if they stay the same ids."""
    tokenizer = processor.tokenizer
    # A model has more rows than its tokenizer has tokens, and samples them too; they have no text.
    spelled = [i for i in done.ids if i < len(tokenizer)]
    text = tokenizer.decode(spelled, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    again = tokenizer.encode(text, add_special_tokens=False)
    return None if again == done.ids else len(again) - len(done.ids)
