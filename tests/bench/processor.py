"""What a request costs in the processor, patched against stock: ``python -m tests.bench.processor``.

Run in the environment of one release (``.lab/<release>/bin/python``). Stock and patched take turns in one
process, so that load on the machine falls on both alike. A turn is one request that is not measured (putting
wrappers on a class empties the interpreter's caches) and then a few that are. The clock is the CPU time of
the process, on all its threads, because a busy machine does not lengthen it much.

Stock gets a request that it can serve: canonical ids, one placeholder for each image. The patched processor
gets the same request (``short``), the same ids expanded (``expanded``), and, with ``--refused``, expanded ids
that lack one placeholder. ``--fresh`` gives every request pictures that were not seen before; without it,
releases from 0.5.20 on find them in their cache.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
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
MEASURED = 3  # requests in a turn
LONGEST = 2**20  # ids that a prompt may have
# What a request may cost on top of stock.
MS_A_REQUEST, NS_AN_ID = 0.2, 60


def prompt(folder: Path, images: int, tokens: int) -> list[int]:
    """Canonical ids with one placeholder per image, and about ``tokens`` of text."""
    ids = rollouts.tokenize(folder, rollouts.IMAGE * images)
    sentence = rollouts.tokenize(folder, SENTENCE)
    return ids + sentence * max(1, (tokens - len(ids)) // len(sentence))


def expanded(ids: Sequence[int], image: int, count: int) -> list[int]:
    """The ids with ``count`` placeholders for each one."""
    return [token for one in ids for token in [one] * (count if one == image else 1)]


def pictures(count: int, fresh: bool) -> Iterator[list[Any]]:
    """The pictures of one request after the other; 448 x 448 px."""
    seed = 0
    kept = [rollouts.picture(448, 448, index) for index in range(count)]
    while True:
        yield [rollouts.picture(448, 448, seed + index) for index in range(count)] if fresh else kept
        seed += count


def seconds(processor: Any, ask: Any, images: Sequence[Any], raises: type[Exception] | None = None) -> float:
    """CPU seconds of one request. No garbage is collected meanwhile."""
    ask = ask if isinstance(ask, str) else list(ask)
    gc.disable()
    start = time.process_time()
    with contextlib.suppress(*[raises] if raises else []):
        processors.run(processors.answer_async(processor, ask, images, max_req_input_len=LONGEST))
    taken = time.process_time() - start
    gc.enable()
    return taken


def compare(
    processor: Any, asks: dict[str, tuple[Any, bool]], images: Iterator[list[Any]], rounds: int
) -> dict[str, list[float]]:
    """CPU seconds of each request: {name: all of them}. Only ``stock`` runs without the patch.

    ``asks``: {name: (the request, whether it is refused)}.
    """
    taken: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(rounds):
        for name, (ask, is_refused) in asks.items():
            raises = deepeyes_patch.RefusedRequest if is_refused else None
            if name != "stock":
                deepeyes_patch.install(["processor"])
            try:
                own = [seconds(processor, ask, next(images), raises) for _ in range(1 + MEASURED)]
            finally:
                if name != "stock":
                    deepeyes_patch.uninstall()
            taken[name] += own[1:]
    return taken


def row(name: str, ids: int, taken: Sequence[float], stock: Sequence[float]) -> str:
    best, usual = min(taken) * 1e3, statistics.median(taken) * 1e3
    added = best - min(stock) * 1e3
    allowed = MS_A_REQUEST + ids * NS_AN_ID / 1e6
    ratio = usual / (statistics.median(stock) * 1e3)
    more = f"{ratio:7.2f} {added:8.2f} {allowed:8.2f}" if taken is not stock else ""
    return f"{name:34} {best:8.2f} {usual:8.2f} {more}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--kind", choices=models.KINDS, default="qwen3_vl")
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--tokens", type=int, nargs="+", default=[512, 8192, 32768])
    arguments.add_argument("--images", type=int, nargs="+", default=[1, 4, 10])
    arguments.add_argument("--fresh", action="store_true")
    arguments.add_argument("--refused", action="store_true")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    folder = models.ensure(chosen.kind, vocabulary="qwen")
    processor = processors.build(folder)
    image = rollouts.vision(folder).image
    count = rollouts.expanded(folder, [rollouts.picture(448, 448)]).ids.count(image)
    seen = "new pictures each time" if chosen.fresh else "the same pictures each time"
    print(f"SGLang {flags.installed().version}, {chosen.kind}, {seen}")
    print(f"CPU ms of {chosen.rounds * MEASURED} requests each; added: the least above stock's least")
    print(f"{'':34} {'least':>8} {'median':>8} {'ratio':>7} {'added':>8} {'goal':>8}")
    for images in chosen.images:
        text = rollouts.conversation(images)
        rows: list[tuple[str, dict[str, tuple[Any, bool]]]] = [
            ("text", {"stock": (text, False), "patched": (text, False)})
        ]
        for tokens in chosen.tokens:
            short = prompt(folder, images, tokens)
            whole = expanded(short, image, count)
            asks = {"stock": (short, False), "short": (short, False), "expanded": (whole, False)}
            if chosen.refused:
                lacking = whole.index(image)
                asks["refused"] = ([*whole[:lacking], *whole[lacking + 1 :]], True)
            rows.append((f"{tokens} ids", asks))
        for name, asks in rows:
            taken = compare(processor, asks, pictures(images, chosen.fresh), chosen.rounds)
            for side, own in taken.items():
                ask = asks[side][0]
                ids = 0 if isinstance(ask, str) else len(ask)
                print(row(f"{name}, {images} image(s), {side}", ids, own, taken["stock"]), flush=True)


if __name__ == "__main__":
    main()
