"""How long text requests wait while long requests with images come in: ``python -m tests.bench.event_loop``.

Run in the environment of one release (``.lab/<release>/bin/python``). The real tokenizer manager and its
processor run on an asyncio loop in this process. One client sends long requests of ten images, one after the
other. Another client sends a short text request every few milliseconds, and measures how long the manager
takes to tokenize it: that is the wait. Stock and patched take turns, so that load on the machine falls on
both alike. Stock gets one placeholder for each image, which it can serve; patched gets the same ids expanded.

A request holds the loop from one of its suspensions to the next. So the second table has the CPU time of the
longest such step of each long request, and of our functions in all steps. A busy machine does not lengthen
CPU time much.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import importlib
import os
import statistics
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab import flags

# The ids are longer than the tiny model's context.
os.environ.update(flags.ENVIRONMENT, SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN="1")

import torch

import deepeyes_patch
from tests.bench import processor as bench
from tests.lab import client, managers, models, processors
from tests.sglang import rollouts

IMAGES = 10
EVERY = 0.01  # seconds from one text request to the next
TEXT = "What is the capital of France? Answer in one word."
# Our functions that run on the loop. `verify` and `open_scope` are most of them.
OURS = (
    ("request.begin", "open_scope"),
    ("request.begin", "verify"),
    ("request.combine", "build_ids"),
    ("request.admit", "_refuse_placeholders"),
)
NAMES = ("stock", "patched")


@dataclass
class Side:
    """What was measured on one side, in milliseconds.

    ``waits``: of text requests. ``long``: of long requests, from start to end. ``held``: CPU time of the
    longest step of each long request. ``ours``: CPU time of our parts of all steps, by function.
    """

    waits: list[float] = field(default_factory=list)
    long: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    ours: dict[str, list[float]] = field(default_factory=dict)


def milliseconds(start: int) -> float:
    return (time.thread_time_ns() - start) / 1e6


@types.coroutine
def stepped(work: Coroutine[Any, Any, Any], held: list[float]) -> Generator[Any, Any, Any]:
    """Await ``work``, and measure each of its steps: what runs from one suspension to the next."""
    resume: Callable[[], Any] = functools.partial(work.send, None)
    while True:
        start = time.thread_time_ns()
        try:
            suspended = resume()
        except StopIteration as end:
            return end.value
        finally:
            held.append(milliseconds(start))
        try:
            resume = functools.partial(work.send, (yield suspended))
        except BaseException as error:
            resume = functools.partial(work.throw, error)


@contextmanager
def timed_parts(side: Side) -> Iterator[None]:
    """Measure our functions of `OURS`. `build_ids` holds SGLang's own work, too."""
    originals = []
    for name, function in OURS:
        module = importlib.import_module(f"deepeyes_patch.{name}")
        originals.append((module, function, getattr(module, function)))
        setattr(module, function, _timed(originals[-1][2], side.ours.setdefault(function, [])))
    try:
        yield
    finally:
        for module, function, original in originals:
            setattr(module, function, original)


def _timed(function: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any) -> Any:
        start = time.thread_time_ns()
        try:
            return function(*args)
        finally:
            taken.append(milliseconds(start))

    return timed


def request(**fields: Any) -> Any:
    made = importlib.import_module("sglang.srt.managers.io_struct").GenerateReqInput(
        sampling_params={"max_new_tokens": 2}, **fields
    )
    made.normalize_batch_and_arguments()
    return made


async def tokenize(manager: Any, asked: Any) -> None:
    if hasattr(manager, "_init_req_state"):  # as `generate_request` does
        manager._init_req_state(asked)
    try:
        await manager._tokenize_one_request(asked)
    finally:
        # Nobody answers, so nobody else removes it.
        getattr(manager, "rid_to_state", {}).pop(asked.rid, None)


async def play(manager: Any, side: Side, ids: Sequence[int], images: Sequence[str], count: int) -> None:
    """Send ``count`` long requests, and text requests meanwhile."""
    ended = asyncio.Event()
    waiting: set[asyncio.Task[None]] = set()

    async def ask_for_text(due: float) -> None:
        await tokenize(manager, request(text=TEXT))
        side.waits.append((time.perf_counter() - due) * 1e3)

    async def ask_for_texts() -> None:
        due = time.perf_counter()
        while not ended.is_set():
            task = asyncio.create_task(ask_for_text(due))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            due += EVERY
            # A client does not wait for the loop: what is late is due all the same.
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    texts = asyncio.create_task(ask_for_texts())
    for _ in range(count):
        start = time.perf_counter()
        asked = request(input_ids=list(ids), image_data=list(images))
        steps: list[float] = []
        await stepped(tokenize(manager, asked), steps)
        side.held.append(max(steps))
        side.long.append((time.perf_counter() - start) * 1e3)
    ended.set()
    await texts
    await asyncio.gather(*waiting)


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(folder: Path, length: int, rounds: int, count: int) -> dict[str, Side]:
    images = [client.as_base64(rollouts.picture(448, 448, seed)) for seed in range(IMAGES)]
    short = bench.prompt(folder, IMAGES, length)
    vision = rollouts.vision(folder)
    each = rollouts.expanded(folder, [rollouts.picture(448, 448)]).ids.count(vision.image)
    asks = {"stock": short, "patched": bench.expanded(short, vision.image, each)}
    sides = {name: Side() for name in NAMES}
    for number in range(1 + rounds):  # the first one pays for what happens once
        for name in NAMES:
            side = Side() if number == 0 else sides[name]
            if name == "patched":
                deepeyes_patch.install(["processor"])
            try:
                manager = managers.manager(folder, context_length=bench.LONGEST)
                processors.run(play(manager, Side(), asks[name], images, 1))
                gc.collect()
                with timed_parts(side):
                    processors.run(play(manager, side, asks[name], images, count))
            finally:
                if name == "patched":
                    deepeyes_patch.uninstall()
    return sides


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--kind", choices=models.KINDS, default="qwen3_vl")
    arguments.add_argument("--lengths", type=int, nargs="+", default=[32768, 262144])
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--requests", type=int, default=4, help="long ones in a turn of one side")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    folder = models.ensure(chosen.kind, vocabulary="qwen")
    done = {length: measure(folder, length, chosen.rounds, chosen.requests) for length in chosen.lengths}
    print(f"SGLang {flags.installed().version}, {chosen.kind}, {IMAGES} images of 448 x 448 px a request")
    print(f"\n{'ms':24} {'waits':>6} {'p50':>8} {'p99':>8} {'longest':>8} {'long request':>13}")
    for length, sides in done.items():
        for name, side in sides.items():
            middle, late = quantile(side.waits, 0.5), quantile(side.waits, 0.99)
            print(
                f"{f'{length} ids, {name}':24} {len(side.waits):6} {middle:8.2f} {late:8.2f} "
                f"{max(side.waits):8.2f} {statistics.median(side.long):13.2f}"
            )
    print(f"\n{'CPU ms on the loop':44} {'calls':>6} {'median':>8} {'longest':>8}")
    for length, sides in done.items():
        for name, side in sides.items():
            rows = {"longest step of a request": side.held, **side.ours}
            for part, taken in rows.items():
                if taken:
                    print(
                        f"{f'{length} ids, {name}, {part}':44} {len(taken):6} "
                        f"{statistics.median(taken):8.2f} {max(taken):8.2f}"
                    )


if __name__ == "__main__":
    main()
