"""What a request costs in the processor, patched against stock: ``python -m tests.bench.processor``.

Run in the environment of one release (``.lab/<release>/bin/python``). Both sides take turns in one process on
the same request, one that stock can serve (one placeholder per image, canonical ids), so that load on the
machine falls on both alike; the ratio is the median of the ratios of neighbours. ``--fresh`` gives every
request pictures that were not seen before; without it, releases from 0.5.20 on find them in their cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab import flags

os.environ.update(flags.ENVIRONMENT)

import torch

import deepeyes_patch
from tests.lab import models, processors
from tests.sglang import rollouts

SENTENCE = "Look at the picture again, then crop the region 0.25, 0.75 around the red cube and answer. "
WARM_UP = 2  # rounds that pay for imports and caches


def prompt(folder: Path, images: int, tokens: int) -> list[int]:
    """Canonical ids with one placeholder per image, and about ``tokens`` of text."""
    ids = rollouts.tokenize(folder, rollouts.IMAGE * images)
    sentence = rollouts.tokenize(folder, SENTENCE)
    return ids + sentence * max(1, (tokens - len(ids)) // len(sentence))


def pictures(count: int, fresh: bool) -> Iterator[list[Any]]:
    """The pictures of one request after the other; 448 x 448 px."""
    seed = 0
    while True:
        yield [rollouts.picture(448, 448, seed + index) for index in range(count)]
        seed += count if fresh else 0


def seconds(processor: Any, ask: Any, images: Sequence[Any]) -> float:
    start = time.perf_counter()
    processors.run(processors.answer_async(processor, ask, images))
    return time.perf_counter() - start


def compare(processor: Any, ask: Any, images: Iterator[list[Any]], rounds: int) -> tuple[float, float, float]:
    """Median seconds of stock and of patched, and the median of their ratios, taking turns."""
    stock: list[float] = []
    patched: list[float] = []
    for _ in range(WARM_UP + rounds):
        stock.append(seconds(processor, ask, next(images)))
        deepeyes_patch.install(["processor"])
        try:
            patched.append(seconds(processor, ask, next(images)))
        finally:
            deepeyes_patch.uninstall()
    stock, patched = stock[WARM_UP:], patched[WARM_UP:]
    ratios = [ours / theirs for theirs, ours in zip(stock, patched, strict=True)]
    return statistics.median(stock), statistics.median(patched), statistics.median(ratios)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kind", choices=models.KINDS, default="qwen3_vl")
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--tokens", type=int, nargs="+", default=[512, 8192, 32768])
    arguments.add_argument("--images", type=int, nargs="+", default=[1, 4, 10])
    arguments.add_argument("--fresh", action="store_true")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    folder = models.ensure(chosen.kind, vocabulary="qwen")
    processor = processors.build(folder)
    seen = "new pictures each time" if chosen.fresh else "the same pictures each time"
    print(f"SGLang {flags.installed().version}, {chosen.kind}, {seen}, medians of {chosen.rounds} rounds")
    print(f"{'request':28} {'stock':>10} {'patched':>10} {'ratio':>7}")
    for images in chosen.images:
        rows: list[tuple[str, Any]] = [(f"text prompt, {images} image(s)", rollouts.conversation(images))]
        rows += [
            (f"{tokens} ids, {images} image(s)", prompt(folder, images, tokens)) for tokens in chosen.tokens
        ]
        for name, ask in rows:
            stock, patched, ratio = compare(processor, ask, pictures(images, chosen.fresh), chosen.rounds)
            print(f"{name:28} {stock * 1e3:8.1f}ms {patched * 1e3:8.1f}ms {ratio:7.2f}", flush=True)


if __name__ == "__main__":
    main()
