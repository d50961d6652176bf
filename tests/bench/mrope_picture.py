"""What an ignored ``mrope_interleaved`` does to attention, drawn: ``python -m tests.bench.mrope_picture``.

Run in the environment of a release that ignores it (``.lab/0.5.3/bin/python``). That release's own rope,
stock and patched, and ``transformers``' rotate the same vectors. The picture shows

- left, the cause: how far each lane turns when a token moves by one grid step along h alone (down) or along
  w alone (right);
- right, the effect: the error of the attention logits q·k against ``transformers``, for random queries and
  keys some grid steps apart along one axis; the root mean square of the error over that of the logits.

Writes the picture of each language to ``docs/images``, or to the folder that it is given, and prints the
figures. Ends with 1 if the patched rope is not that of ``transformers``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab import flags
from tests.lab.environments import CHECKOUT

os.environ.update(flags.ENVIRONMENT)
# The stock forward of 0.5.3 is compiled, which takes minutes on a CPU and changes no result here.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch

import deepeyes_patch
from tests.bench.mrope_drawing import AXES, STEPS, WORDS, Curves, Measured, draw
from tests.lab import processors
from tests.sglang.test_mrope import HEAD, INTERLEAVED, MODULE, THETA, build, transformers_rope

FOLDER = CHECKOUT / "docs" / "images"
PAIRS = 4096
ORIGIN = 100  # t, h and w of the query: some text comes first
LANES = HEAD // 2
NOISE = 1e-5  # of float32

# ([vectors, HEAD], (t, h, w)) -> the vectors, rotated to that position
Rotate = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


def by_sglang(rope: Any) -> Rotate:
    def rotate(vectors: torch.Tensor, position: Sequence[int]) -> torch.Tensor:
        positions = torch.tensor(position)[:, None].expand(3, len(vectors))
        return rope.forward(positions, vectors.clone(), vectors.clone())[0]

    return rotate


def by_transformers() -> Rotate:
    from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb

    rope = transformers_rope(INTERLEAVED["mrope_section"])

    def rotate(vectors: torch.Tensor, position: Sequence[int]) -> torch.Tensor:
        cos, sin = rope(vectors, torch.tensor(position)[:, None, None].expand(3, 1, len(vectors)))
        heads = vectors[None, None]
        return apply_rotary_pos_emb(heads, heads, cos, sin)[0][0, 0]

    return rotate


def moved(axis: str, steps: int) -> list[int]:
    position = [ORIGIN] * 3
    position[AXES[axis]] += steps
    return position


def turns(rotate: Rotate) -> Curves:
    """Radians by which each lane turns in one step; lane j is elements j and j + HEAD / 2."""
    vector = torch.cat((torch.ones(1, LANES), torch.zeros(1, LANES)), dim=1)

    def angles(position: Sequence[int]) -> torch.Tensor:
        real, imaginary = rotate(vector, position)[0].double().split(LANES)
        return torch.complex(real, imaginary)

    start = angles(moved("h", 0))
    return {axis: (angles(moved(axis, 1)) / start).angle().tolist() for axis in AXES}


def errors(rotate: Rotate, reference: Rotate) -> Curves:
    """Percent of the logits' size, for 0, 1, ... steps from query to key."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, PAIRS, HEAD, generator=generator)

    def logits(by: Rotate, axis: str) -> torch.Tensor:
        turned = by(query, moved(axis, 0))
        return torch.stack([(turned * by(key, moved(axis, steps))).sum(dim=1) for steps in STEPS])

    found = {}
    for axis in AXES:
        right = logits(reference, axis)
        wrong = logits(rotate, axis) - right
        found[axis] = (100 * (wrong.square().mean(dim=1) / right.square().mean(dim=1)).sqrt()).tolist()
    return found


def measure() -> Measured:
    processors.processor_class()  # imports what the rope's module needs first
    module = importlib.import_module(MODULE)
    reference = by_transformers()
    conditions = {
        "version": flags.installed().version,
        "head": HEAD,
        "theta": THETA,
        "sections": INTERLEAVED["mrope_section"],
        "pairs": PAIRS,
    }
    found = Measured(conditions, {"transformers": turns(reference)}, {})
    for name in ("stock", "patched"):
        if name == "patched":
            deepeyes_patch.install(["mrope"])
        rotate = by_sglang(build(module, INTERLEAVED))
        found.turns[name], found.errors[name] = turns(rotate), errors(rotate, reference)
    return found


def report(found: Measured) -> Iterator[str]:
    yield "fastest lane of an axis, radians a step"
    for name, curves in found.turns.items():
        yield f"  {name:14}" + "".join(f"{axis} {max(map(abs, curves[axis])):<10.2g}" for axis in AXES)
    yield "error of attention logits, % of their size"
    yield f"  {'steps':8}" + "".join(f"{name + ' ' + axis:>12}" for name in found.errors for axis in AXES)
    for step in (1, 2, 3, 5, 10, 20, 40):
        values = "".join(f"{curves[axis][step]:12.4f}" for curves in found.errors.values() for axis in AXES)
        yield f"  {step:<8}{values}"
    means = [sum(curves[axis][1:]) / STEPS[-1] for curves in found.errors.values() for axis in AXES]
    yield f"  {'mean':8}" + "".join(f"{mean:12.4f}" for mean in means)


def main(folder: Path) -> int:
    if flags.interleaves():
        raise SystemExit(
            f"SGLang {flags.installed().version} interleaves by itself; take the environment of 0.5.3"
        )
    found = measure()
    for row in report(found):
        print(row)
    folder.mkdir(exist_ok=True)
    for language, words in WORDS.items():
        picture = folder / f"mrope_error_{language}.svg"
        picture.write_text("".join(f"{row}\n" for row in draw(found, words)), encoding="utf-8")
        print(picture)
    return int(max(map(max, found.errors["patched"].values())) / 100 > NOISE)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
