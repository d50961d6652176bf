"""What came of the rollouts, as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tests.e2e.rollout import environment, loop
from tests.e2e.rollout.loop import Round

LEGEND = """\
due: ids that the model must see, used: prompt_tokens that SGLang reports, sampled: tokens of the answers.
max, mean: |log-prob of the trainer - log-prob of the server| of a sampled token; ratio: mean of their
quotient. markers: answers in which the model sampled a placeholder, which end there. lost: samples with a
refused turn, other ids than the trainer's, or a token whose log-prob is off by 0.005 or more."""


def lines(rounds: Sequence[Round]) -> Iterator[str]:
    yield f"{'':22}{'turns':>6}{'due':>7}{'used':>7}{'sampled':>9}{'max':>10}{'mean':>10}{'ratio':>9}"
    for one in rounds:
        yield one.name
        for number in range(1, environment.MAX_TURNS + 1):
            yield from _row(f"  turn {number}", one, {number})
        yield from _row("  all turns", one, set(range(1, environment.MAX_TURNS + 1)))
        yield f"  {_rest(one)}"


def _row(name: str, one: Round, numbers: set[int]) -> Iterator[str]:
    found = [(turn, off) for number, turn, off in loop.turns(one) if number in numbers]
    if found:
        off = torch.cat([piece for _, piece in found])
        due, used = (sum(getattr(turn, n) for turn, _ in found) for n in ("start", "prompt_tokens"))
        largest, mean, ratio = off.abs().max(), off.abs().mean(), off.exp().mean()
        head = f"{name:22}{len(found):>6}{due:>7}{used:>7}{len(off):>9}"
        yield f"{head}{largest:>10.1e}{mean:>10.1e}{ratio:>9.5f}"


def _rest(one: Round) -> str:
    samples = list(zip(one.trajectories, one.differences, strict=True))
    refused = [done.refusal.status for done in one.trajectories if done.refusal]
    parts = [f"{len(samples)} samples", f"markers {sum(done.placeholder for done in one.trajectories)}"]
    if refused:
        parts.append(f"refused {len(refused)} (HTTP {', '.join(map(str, sorted(set(refused))))})")
    parts.append(f"lost {sum(loop.is_lost(*sample) for sample in samples)}")
    if one.moved is not None:
        parts.append(f"old weights off by {float(torch.cat(one.moved).abs().mean()):.3f} on average")
    if one.gradient is not None:
        rewards = torch.tensor([done.reward for done in one.trajectories])
        parts.append(f"reward {float(rewards.mean()):.3f}, gradient {one.gradient:.3f}")
    return "; ".join(parts)
