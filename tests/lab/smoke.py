"""Shows that the lab works: ``.lab/<release>/bin/python -m tests.lab.smoke [--server]``.

Stock SGLang against ``transformers``, for both tiny models: the processor in this process must give
the same ids, grids and positions; with ``--server`` a real server's log-probs are compared too.
The patch is off throughout. Ends with 1 if something differs that stock SGLang gets right.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from tests.lab import client, flags, models, processors, reference, samples, server

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

NOISE = 5e-3  # bf16


def check_processor(kind: models.Kind) -> bool:
    folder = models.ensure(kind)
    processor = processors.build(kind)
    images, text = samples.pictures(), samples.prompt()
    expected = reference.expand(folder, text, images)
    positions, delta = reference.positions(folder, expected.input_ids, expected.grids)
    right = True
    for prompt in (text, reference.processor(folder).tokenizer(text).input_ids):
        start = time.monotonic()
        got = processors.process(processor, prompt, images)
        same = {
            "ids": got.input_ids == expected.input_ids,
            "grids": _listed(got.grids) == _listed(expected.grids),
            "positions": got.mrope_positions.tolist() == positions.tolist(),
            "delta": got.mrope_position_delta == delta,
        }
        took = (time.monotonic() - start) * 1000
        what = "text" if isinstance(prompt, str) else "ids"
        print(f"  {kind} processor, {what}: {same} offsets {got.offsets} ({took:.0f} ms)", flush=True)
        right = right and all(same.values())
    return right


def _listed(grids: torch.Tensor | None) -> list[list[int]] | None:
    return None if grids is None else grids.tolist()


def check_server(kind: models.Kind, args: Sequence[str] = ()) -> bool:
    folder = models.ensure(kind)
    images, text = samples.pictures(), samples.prompt()
    start = time.monotonic()
    with server.serve(folder, env={"DEEPEYES_PATCH": None}, args=args) as running:
        up = time.monotonic() - start
        answer = client.generate(running.url, text, images)
    if answer.status != 200:
        print(f"  {kind} server: HTTP {answer.status} {answer.body}")
        return False
    expected = reference.expand(folder, text, images)
    scores = reference.logprobs(
        folder, expected.input_ids, expected.grids, expected.pixel_values, answer.output_ids
    )
    worst: float = max(abs(a - b) for a, b in zip(answer.logprobs, scores.tolist(), strict=True))
    print(f"  {kind} server: up in {up:.0f} s, ids {answer.output_ids}")
    print(f"    server       {[round(score, 4) for score in answer.logprobs]}")
    print(f"    transformers {[round(score, 4) for score in scores.tolist()]}  worst {worst:.4f}")
    # What old releases get wrong by themselves, and the patch repairs.
    known_wrong = kind == "qwen3_vl" and not flags.interleaves()
    return worst > NOISE if known_wrong else worst < NOISE


def main(arguments: Sequence[str]) -> int:
    os.environ.pop("DEEPEYES_PATCH", None)
    print(f"SGLang {flags.installed().version}", flush=True)
    results = [check_processor(kind) for kind in models.KINDS]
    if "--server" in arguments:
        results += [check_server(kind) for kind in models.KINDS]
    print("right" if all(results) else "WRONG")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
