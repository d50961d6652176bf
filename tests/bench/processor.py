"""What a request costs in the processor, patched against stock: ``python -m tests.bench.processor``.

Run in the environment of one release (``.lab/<release>/bin/python``). Both sides take turns in one process on
the same request, one that stock can serve (one placeholder per image, canonical ids), so that load on the
machine falls on both alike; the ratio of the medians is what counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.lab import flags

os.environ.update(flags.ENVIRONMENT)

import deepeyes_patch
from tests.lab import models, processors
from tests.sglang import rollouts

SENTENCE = "Look at the picture again, then crop the region 0.25, 0.75 around the red cube and answer. "


def prompt(folder: Path, images: int, tokens: int) -> list[int]:
    """Canonical ids with one placeholder per image, about ``tokens`` long once expanded."""
    ids = rollouts.tokenize(folder, rollouts.IMAGE * images)
    sentence = rollouts.tokenize(folder, SENTENCE)
    return ids + sentence * max(1, (tokens - len(ids)) // len(sentence))


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(processor: Any, ask: Any, images: Sequence[Any], rounds: int) -> tuple[float, float]:
    """Median seconds of (stock, patched), taking turns."""
    stock: list[float] = []
    patched: list[float] = []
    for _ in range(rounds):
        stock.append(seconds(lambda: processors.process(processor, ask, images)))
        deepeyes_patch.install(["processor"])
        try:
            patched.append(seconds(lambda: processors.process(processor, ask, images)))
        finally:
            deepeyes_patch.uninstall()
    # The first of each pays for imports and caches.
    return statistics.median(stock[1:]), statistics.median(patched[1:])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kind", choices=models.KINDS, default="qwen3_vl")
    arguments.add_argument("--rounds", type=int, default=12)
    arguments.add_argument("--tokens", type=int, nargs="+", default=[512, 8192, 32768])
    arguments.add_argument("--images", type=int, nargs="+", default=[1, 4])
    chosen = arguments.parse_args()
    folder = models.ensure(chosen.kind, vocabulary="qwen")
    processor = processors.build(folder)
    print(f"SGLang {flags.installed().version}, {chosen.kind}, medians of {chosen.rounds - 1} rounds")
    print(f"{'request':28} {'stock':>10} {'patched':>10} {'ratio':>7}")
    for images in chosen.images:
        pictures = [rollouts.picture(448, 448, seed) for seed in range(images)]
        text = rollouts.conversation(images)
        rows: list[tuple[str, Any]] = [(f"text prompt, {images} image(s)", text)]
        rows += [
            (f"{tokens} ids, {images} image(s)", prompt(folder, images, tokens)) for tokens in chosen.tokens
        ]
        for name, ask in rows:
            stock, patched = compare(processor, ask, pictures, chosen.rounds)
            print(f"{name:28} {stock * 1e3:8.1f}ms {patched * 1e3:8.1f}ms {patched / stock:7.2f}", flush=True)


if __name__ == "__main__":
    main()
