"""The trainer: log-probs of the sampled tokens on the very same ids, and one policy-gradient step.

Group advantages as in GRPO, one forward pass a trajectory, everything trained, the vision tower too.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from tests.e2e.rollout.agent import Trajectory


class Trainer:
    """``transformers``' own model, in float32 like the server."""

    def __init__(self, folder: Path, learning_rate: float) -> None:
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate)

    def score(self, done: Trajectory) -> torch.Tensor:
        """Log-probs float32 [N] of the sampled tokens, turn after turn."""
        return score(self.model, done)

    def step(self, groups: Sequence[Sequence[Trajectory]]) -> float:
        """One step on groups of trajectories of the same task; the norm of the gradient."""
        self._optimizer.zero_grad()
        tokens = sum(turn.stop - turn.start for group in groups for done in group for turn in done.turns)
        for group in groups:
            rewards = torch.tensor([done.reward for done in group])
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            for done, advantage in zip(group, advantages, strict=True):
                sampled = torch.tensor([score for turn in done.turns for score in turn.logprobs])
                # Its distance from 1 is the mismatch between trainer and server, and nothing else: this is
                # the first step on these samples.
                ratio = (self.score(done) - sampled).exp()
                (-(ratio * advantage).sum() / tokens).backward()
        gradients = [weight.grad.norm() for weight in self.model.parameters() if weight.grad is not None]
        self._optimizer.step()
        return float(torch.stack(gradients).norm())

    def save(self, checkpoint: Path) -> Path:
        self.model.save_pretrained(checkpoint)
        return checkpoint


def score(model: Any, done: Trajectory) -> torch.Tensor:
    """Log-probs float32 [N] that a model gives to the sampled tokens, from one pass over the episode."""
    image = model.config.image_token_id
    # The last token is looked at, never fed; where it stands, any token does that is no image's.
    fed = torch.tensor([[*done.ids[:-1], 0]])
    extra = {}
    # transformers 5 is told where the images are.
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        extra["mm_token_type_ids"] = (fed == image).int()
    logits = model(
        input_ids=fed,
        attention_mask=torch.ones_like(fed),
        pixel_values=torch.cat(done.pixel_values),
        image_grid_thw=torch.cat(done.grids),
        use_cache=False,
        **extra,
    ).logits[0]
    places = [place for turn in done.turns for place in range(turn.start, turn.stop)]
    rows = logits[[place - 1 for place in places]].float().log_softmax(dim=-1)
    return rows.gather(1, torch.tensor([[done.ids[place]] for place in places]))[:, 0]
