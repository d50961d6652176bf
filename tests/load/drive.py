"""Puts good and malformed requests to a server, many at a time, and judges every answer."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.lab import client
from tests.lab.client import Answer
from tests.load import good, malformed
from tests.load.good import Good, Reference
from tests.load.malformed import UPSTREAMS, Malformed

MALFORMED = 0.1  # of the requests
SECONDS = 120  # for an answer, however many wait before it


@dataclass
class Report:
    """``problems`` is empty where everything is as it should be."""

    served: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    upstreams: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0


def plan(folder: Path, requests: int, start: int) -> list[Good | Malformed]:
    """The same ones in the same order for a seed ``start``."""
    choose = random.Random(start)
    pool = good.pool(folder)
    bad = malformed.draw(folder, pool, round(requests * MALFORMED), start)
    bad = choose.sample(bad, round(requests * MALFORMED))
    # Each good one equally often, or once more.
    rest = requests - len(bad)
    many = [*bad, *(pool * (rest // len(pool) + 1))[:rest]]
    choose.shuffle(many)
    return many


def load(
    url: str,
    folder: Path,
    planned: Sequence[Good | Malformed],
    concurrency: int,
    halfway: Callable[[], Any] = lambda: None,
) -> Report:
    """Ask everything; ``halfway`` is called when half of the answers are there."""
    report = Report()
    begin = time.monotonic()

    def ask(one: Good | Malformed) -> tuple[Answer | Exception, float]:
        asked = time.monotonic()
        try:
            return client.ask(url, one.body, SECONDS), time.monotonic() - asked
        except Exception as error:  # a time-out, a closed connection, no event in a stream: a finding
            return error, time.monotonic() - asked

    with ThreadPoolExecutor(concurrency) as threads:
        coming = [threads.submit(ask, one) for one in planned]
        answers = [each.result() for each in coming[: len(coming) // 2]]
        halfway()
        answers += [each.result() for each in coming[len(coming) // 2 :]]
    report.seconds = time.monotonic() - begin
    report.slowest = max(seconds for _, seconds in answers)
    truth = Reference(folder)
    for index, (one, (answer, _)) in enumerate(zip(planned, answers, strict=True)):
        problem = _judge(one, answer, truth, report)
        if problem:
            report.problems.append(f"request {index}, {one.kind}: {problem}")
    truth.keep()
    return report


def _judge(one: Good | Malformed, answer: Answer | Exception, truth: Reference, report: Report) -> str | None:
    if isinstance(answer, Exception):
        return f"no answer: {answer!r}"
    if isinstance(one, Good) or one.rows:
        report.served[one.kind] += 1
        new_tokens = one.body["sampling_params"]["max_new_tokens"]
        bodies = answer.body if len(one.rows) > 1 else [answer.body]
        if answer.status != 200 or len(bodies) != len(one.rows):
            return f"HTTP {answer.status}: {answer.body!s:.300}"
        found = [
            truth.problem(row, client.read(200, body, answer.chunks), new_tokens)
            for row, body in zip(one.rows, bodies, strict=True)
        ]
        return next((problem for problem in found if problem), None)
    status, message = refusal(answer)
    if one.kind == UPSTREAMS:
        report.upstreams[f"{one.kind}: HTTP {status}"] += 1
        return "served" if status == 200 else None
    report.refused[one.kind] += 1
    if status != 400:
        return f"{status}: {message:.300}; due: {one.problems}"
    if not message or not any(re.search(problem, message, re.DOTALL) for problem in one.problems):
        return f"the message {message[:300]!r} matches none of {one.problems}"
    return None


def refusal(answer: Answer) -> tuple[int, str]:
    """The status and message of an error, also of one that comes as the only event of a stream."""
    if answer.chunks and len(answer.chunks) != 1:
        return answer.status, f"{len(answer.chunks)} events"
    error = answer.body.get("error", answer.body) if isinstance(answer.body, dict) else answer.body
    if not isinstance(error, dict) or "message" not in error:
        return answer.status, error if isinstance(error, str) else json.dumps(error)
    if answer.status != 200:
        return answer.status, error["message"]
    # The status line of a stream is long gone; its error event names no code on some releases.
    return int(error.get("code") or HTTPStatus.BAD_REQUEST), error["message"]
