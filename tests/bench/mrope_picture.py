"""What an ignored ``mrope_interleaved`` does to attention, drawn: ``python -m tests.bench.mrope_picture``.

Run in the environment of a release that ignores it (``.lab/0.5.3/bin/python``). That release's own rope,
stock and patched, and ``transformers``' rotate the same vectors. The picture shows

- left, the cause: how far each lane turns when a token moves by one grid step along h alone (down) or along
  w alone (right);
- right, the effect: the error of the attention logits q·k against ``transformers``, for random queries and
  keys some grid steps apart along one axis; the root mean square of the error over that of the logits.

Writes the picture to ``docs/images``, or to the file that it is given, and prints the figures. Ends with 1 if
the patched rope is not that of ``transformers``.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import flags
from tests.lab.environments import CHECKOUT

os.environ.update(flags.ENVIRONMENT)
# The stock forward of 0.5.3 is compiled, which takes minutes on a CPU and changes no result here.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch

import deepeyes_patch
from tests.lab import processors
from tests.sglang.test_mrope import HEAD, INTERLEAVED, MODULE, THETA, build, transformers_rope

PICTURE = CHECKOUT / "docs" / "images" / "mrope_error.svg"
STEPS = range(41)
PAIRS = 4096
ORIGIN = 100  # t, h and w of the query: some text comes first
AXES = {"h": 1, "w": 2}
LANES = HEAD // 2
NOISE = 1e-5  # of float32

# ([vectors, HEAD], (t, h, w)) -> the vectors, rotated to that position
Rotate = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]
Curves = dict[str, list[float]]  # for each axis


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


@dataclass(frozen=True)
class Measured:
    turns: dict[str, Curves]  # of stock, patched, transformers
    errors: dict[str, Curves]  # of stock, patched


def measure() -> Measured:
    processors.processor_class()  # imports what the rope's module needs first
    module = importlib.import_module(MODULE)
    reference = by_transformers()
    found = Measured({"transformers": turns(reference)}, {})
    for name in ("stock", "patched"):
        if name == "patched":
            deepeyes_patch.install(["mrope"])
        rotate = by_sglang(build(module, INTERLEAVED))
        found.turns[name], found.errors[name] = turns(rotate), errors(rotate, reference)
    return found


# --- the picture --------------------------------------------------------------------------------------

COLOURS = {"h": "#c1121f", "w": "#1d5fa8"}
INK, FAINT = "#24292f", "#d0d7de"
WIDTH, HEIGHT = 900, 420
Ticks = Sequence[tuple[float, str]]
TOP, BOTTOM = 56, 316


@dataclass(frozen=True)
class Panel:
    """A diagram. ``x`` and ``y`` map a value to 0 ... 1, rightwards and upwards."""

    left: int
    right: int
    x: Callable[[float], float]
    y: Callable[[float], float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = self.left + (self.right - self.left) * self.x(x)
        return across, BOTTOM - (BOTTOM - TOP) * self.y(y)

    def frame(self, title: str, below: str, x_ticks: Ticks, y_ticks: Ticks) -> Iterator[str]:
        yield text((self.left + self.right) / 2, TOP - 24, title, anchor="middle", weight="bold")
        for value, words in y_ticks:
            _, y = self.at(x_ticks[0][0], value)
            yield line(self.left, y, self.right, y, FAINT)
            yield text(self.left - 10, y + 4, words, anchor="end")
        for value, words in x_ticks:
            x, _ = self.at(value, y_ticks[0][0])
            yield line(x, BOTTOM, x, BOTTOM + 5, INK)
            yield text(x, BOTTOM + 20, words, anchor="middle")
        yield line(self.left, BOTTOM, self.right, BOTTOM, INK)
        yield text((self.left + self.right) / 2, BOTTOM + 42, below, anchor="middle")


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{words}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def curve(points: Sequence[tuple[float, float]], colour: str) -> str:
    listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{listed}" fill="none" stroke="{colour}" stroke-width="2"/>'


def dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>'


def ring(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="none" stroke="{colour}"/>'


def cross(x: float, y: float, colour: str) -> str:
    return line(x - 3, y - 3, x + 3, y + 3, colour, 1.5) + line(x - 3, y + 3, x + 3, y - 3, colour, 1.5)


MARKS = {"transformers": ring, "patched": dot, "stock": cross}


def cause(found: Measured) -> Iterator[str]:
    powers = range(-7, 1)
    rows = [(name, axis) for axis in AXES for name in MARKS]

    def across(angle: float) -> float:
        return (math.log10(angle) - powers[0]) / (powers[-1] - powers[0])

    panel = Panel(126, 436, across, lambda row: 1 - (row + 0.5) / len(rows))
    yield from panel.frame(
        "How far each lane turns in one step",
        "radians",
        [(10.0**power, f'10<tspan dy="-5" font-size="9">{power}</tspan>') for power in powers],
        [(row, f"{axis} {name}") for row, (name, axis) in enumerate(rows)],
    )
    for row, (name, axis) in enumerate(rows):
        for angle in found.turns[name][axis]:
            if abs(angle) > 10.0 ** powers[0]:  # the others do not turn with this axis
                yield MARKS[name](*panel.at(abs(angle), row), COLOURS[axis])


def effect(found: Measured) -> Iterator[str]:
    top = 50
    panel = Panel(506, 866, lambda steps: steps / STEPS[-1], lambda error: error / top)
    yield from panel.frame(
        "Error of attention logits (rms)",
        "steps from query to key",
        [(steps, str(steps)) for steps in STEPS[::10]],
        [(error, f"{error} %") for error in range(0, top + 1, 10)],
    )
    for first, (axis, colour) in enumerate(COLOURS.items()):
        yield curve([panel.at(x, y) for x, y in enumerate(found.errors["stock"][axis])], colour)
        for step in STEPS[first::2]:  # taking turns, or one axis would hide the other
            yield dot(*panel.at(step, found.errors["patched"][axis][step]), colour)


def legend(version: str) -> Iterator[str]:
    x, y = 64, HEIGHT - 34
    for axis, words in (("h", "h: down, y"), ("w", "w: right, x")):
        yield line(x, y - 4, x + 20, y - 4, COLOURS[axis], 5)
        yield text(x + 28, y, words)
        x += 130
    yield text(506, y, "lines: stock; dots: patched")
    conditions = f"head {HEAD}, theta {THETA:,.0f}, sections {INTERLEAVED['mrope_section']}"
    yield text(64, HEIGHT - 10, f"Rope of SGLang {version}: {conditions}; {PAIRS} random pairs of q and k.")


def draw(version: str, found: Measured) -> Iterator[str]:
    """SVG, line by line."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="13">'
    )
    yield f"<title>The rope of SGLang {version}, stock and patched, beside that of transformers</title>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield from cause(found)
    yield from effect(found)
    yield from legend(version)
    yield "</svg>"


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


def main(picture: Path) -> int:
    version = flags.installed().version
    if flags.interleaves():
        raise SystemExit(f"SGLang {version} interleaves by itself; take the environment of 0.5.3")
    found = measure()
    for row in report(found):
        print(row)
    picture.parent.mkdir(exist_ok=True)
    picture.write_text("".join(f"{row}\n" for row in draw(version, found)))
    print(picture)
    return int(max(map(max, found.errors["patched"].values())) / 100 > NOISE)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE))
