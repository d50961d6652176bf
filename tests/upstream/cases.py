"""``python -m tests.upstream.cases RESULTS.json [OPTION]``: our processor suite for images, package off.

Runs in the environment of a release, with a copy of SGLang first on the path, stock or changed. The requests
are those of ``tests/sglang/test_processor.py``; expected values come from ``transformers``. Writes, for each
model, way and case, what came of it. ``--core``: few cases. ``--one-way``: all cases, in the default way.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import deepeyes_patch
from tests.lab import flags, models, processors, reference
from tests.sglang import rollouts, ways
from tests.sglang.rollouts import Request, picture
from tests.sglang.test_processor import PICTURES, REFUSALS, REQUESTS, Good

EXACT, REFUSED, WRONG = "exact", "HTTP 400", "served wrong"
# "short" ids hold one placeholder per image; stock serves them, and must go on serving them.
CORE = ("expanded", "drift between", "history expanded, new turn short", "short", "one pad too few")

# What the change does not decide: what comes of it, which is what comes of unexpanded ids in stock, and why.
OUTSIDE = {
    "an id beyond the vocabulary": (EXACT, "SGLang checks no ids; its pull request 31908 does"),
    "a negative id": (EXACT, "the same"),
    "no span at all": (WRONG, "SGLang drops images without a placeholder, with a warning"),
    "an image too many, short": (WRONG, "the same"),
    "no ids at all": ("AssertionError", "SGLang asserts in its loader that there are ids"),
}
# Unexpanded ids drift where SGLang is told to tokenize them again, which some models' path obeys.
DRIFTS = ("short drifted", "retokenize")


def _markers_alone(folder: Path) -> Request:
    tokens = rollouts.vision(folder)
    ids = [tokens.start, *rollouts.expanded(folder, PICTURES[:1]).ids, tokens.end]
    return Request(ids, PICTURES[:1], ids)


def _spelled(text: str) -> Callable[[Path], Request]:
    """Ids whose text holds one more image than there are: in letters, no placeholder."""

    def make(folder: Path) -> Request:
        tokenizer = reference.processor(folder).tokenizer
        letters = [i for c in text for i in tokenizer.encode(c, add_special_tokens=False)]
        ids = letters + rollouts.expanded(folder, PICTURES[:1]).ids
        return Request(ids, PICTURES[:1], ids)

    return make


def _random_sizes(folder: Path) -> Request:
    draw = random.Random(11)
    images = [picture(draw.randint(80, 900), draw.randint(80, 900), seed) for seed in range(6)]
    return rollouts.expanded(folder, images)


def _spoilt(name: str) -> Callable[[Path], Request]:
    def make(folder: Path) -> Request:
        ids, images, _ = REFUSALS[name](Good(folder))
        return Request(ids, images, ids)

    return make


SERVED: dict[str, Callable[[Path], Request]] = {
    **REQUESTS,
    "random sizes": _random_sizes,
    "lone markers in the text": _markers_alone,
    "text that spells a placeholder": _spelled(rollouts.IMAGE),
    "text that spells <image>": _spelled("<image>"),
}
BAD: dict[str, Callable[[Path], Request]] = {
    **{name: _spoilt(name) for name in REFUSALS},
    "an image missing, short": lambda f: replace(rollouts.short(f, PICTURES[:2]), images=PICTURES[:1]),
    "an image too many, short": lambda f: replace(rollouts.short(f, PICTURES[:1]), images=PICTURES[:2]),
}
TOGETHER = "24 requests at the same time"
CASES = (*SERVED, *BAD, TOGETHER)


def expected(case: str, way: str) -> str | None:
    """What must come of it; None where the model decides."""
    if case == DRIFTS[0] and DRIFTS[1] in way:
        return None
    if case in OUTSIDE:
        return OUTSIDE[case][0]
    return REFUSED if case in BAD else EXACT


def outcome(folder: Path, processor: Any, case: str) -> str:
    """`EXACT`, `REFUSED` (a ``ValueError``), `WRONG`, or the name of another exception."""
    if case == TOGETHER:
        return together(folder, processor)
    request = (SERVED | BAD)[case](folder)
    sent = list(request.ids)
    result = _answer(processor, request)
    if isinstance(result, Exception):
        return REFUSED if isinstance(result, ValueError) else type(result).__name__
    try:
        rollouts.assert_exact(folder, result, request)
    except Exception:  # a result that lacks a part is as wrong as one that differs
        return WRONG
    return EXACT if sent == request.ids else WRONG


def _answer(processor: Any, request: Request) -> Any:
    try:
        return rollouts.attempt(processor, request)
    except Exception as error:  # stock runs into whatever its code runs into
        return error


def together(folder: Path, processor: Any) -> str:
    """24 requests at the same time, of four kinds: none may get another's ids."""
    kinds = ("expanded", "expanded, one image", "drift between", "history expanded, new turn short")
    requests = [SERVED[kinds[i % 4]](folder) for i in range(24)]
    requests = [
        Request([*r.ids, 100 + i], r.images, [*r.expected_ids, 100 + i]) for i, r in enumerate(requests)
    ]

    async def run() -> list[Any]:
        work = [processors.process_async(processor, r.ids, r.images) for r in requests]
        return await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), 120)

    for request, result in zip(requests, processors.run(run()), strict=True):
        if isinstance(result, Exception):
            return type(result).__name__
        try:
            rollouts.assert_exact(folder, result, request)
        except AssertionError:
            return WRONG
    return EXACT


def run(chosen_ways: Sequence[str], cases: Sequence[str]) -> dict[str, dict[str, dict[str, str]]]:
    """Model -> way -> case -> what came of it."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for kind in models.KINDS:
        folder = models.ensure(kind)
        for way in chosen_ways:
            os.environ.pop("SGLANG_MM_AVOID_RETOKENIZE", None)
            os.environ.update(ways.variables(way))
            processor = ways.build(folder, way)
            rows = {case: outcome(folder, processor, case) for case in cases}
            found.setdefault(kind, {})[way] = rows
    return found


def main(results: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    core, one_way = "--core" in arguments, "--one-way" in arguments
    found = run([ways.DEFAULT] if core or one_way else ways.ways(), CORE if core else CASES)
    module = sys.modules[processors.MODULE].__file__
    is_on = deepeyes_patch.status()["processor"] != "off"
    Path(results).write_text(json.dumps({"processor": module, "switched on": is_on, "found": found}))


if __name__ == "__main__":
    os.environ.update(flags.ENVIRONMENT)
    main(*sys.argv[1:])
