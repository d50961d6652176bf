"""The picture that `tests.bench.mrope_picture` makes of its figures, in both languages. SVG; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

STEPS = range(41)
AXES = {"h": 1, "w": 2}  # their places in a position (t, h, w)

Curves = dict[str, list[float]]  # for each axis


@dataclass(frozen=True)
class Measured:
    conditions: dict[str, object]  # what ``WORDS`` names
    turns: dict[str, Curves]  # of stock, patched, transformers
    errors: dict[str, Curves]  # of stock, patched


WORDS = {
    "en": {
        "title": "The rope of SGLang {version}, stock and patched, beside that of transformers",
        "cause": "How far each lane turns in one step",
        "turned": "radians",
        "effect": "Error of attention logits (rms)",
        "moved": "steps from query to key",
        "transformers": "transformers",
        "patched": "patched",
        "stock": "stock",
        "h": "h: down, y",
        "w": "w: right, x",
        "curves": "lines: stock; dots: patched",
        "conditions": "Rope of SGLang {version}: head {head}, theta {theta:,.0f}, sections {sections}; "
        "{pairs} random pairs of q and k.",
    },
    "zh": {
        "title": "SGLang {version} 的 rope（原版与修补后）与 transformers 的 rope",
        "cause": "每个通道每步转过的角度",
        "turned": "弧度",
        "effect": "注意力 logit 的误差（均方根）",
        "moved": "query 与 key 相距的步数",
        "transformers": "transformers",
        "patched": "修补后",
        "stock": "原版",
        "h": "h：向下，y",
        "w": "w：向右，x",
        "curves": "线：原版；点：修补后",
        "conditions": "SGLang {version} 的 rope：head {head}，theta {theta:,.0f}，sections {sections}；"
        "{pairs} 对随机的 q 和 k。",
    },
}
Words = dict[str, str]
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


def cause(found: Measured, words: Words) -> Iterator[str]:
    powers = range(-7, 1)
    rows = [(name, axis) for axis in AXES for name in MARKS]

    def across(angle: float) -> float:
        return (math.log10(angle) - powers[0]) / (powers[-1] - powers[0])

    panel = Panel(126, 436, across, lambda row: 1 - (row + 0.5) / len(rows))
    yield from panel.frame(
        words["cause"],
        words["turned"],
        [(10.0**power, f'10<tspan dy="-5" font-size="9">{power}</tspan>') for power in powers],
        [(row, f"{axis} {words[name]}") for row, (name, axis) in enumerate(rows)],
    )
    for row, (name, axis) in enumerate(rows):
        for angle in found.turns[name][axis]:
            if abs(angle) > 10.0 ** powers[0]:  # the others do not turn with this axis
                yield MARKS[name](*panel.at(abs(angle), row), COLOURS[axis])


def effect(found: Measured, words: Words) -> Iterator[str]:
    top = 50
    panel = Panel(506, 866, lambda steps: steps / STEPS[-1], lambda error: error / top)
    yield from panel.frame(
        words["effect"],
        words["moved"],
        [(steps, str(steps)) for steps in STEPS[::10]],
        [(error, f"{error} %") for error in range(0, top + 1, 10)],
    )
    for first, (axis, colour) in enumerate(COLOURS.items()):
        yield curve([panel.at(x, y) for x, y in enumerate(found.errors["stock"][axis])], colour)
        for step in STEPS[first::2]:  # taking turns, or one axis would hide the other
            yield dot(*panel.at(step, found.errors["patched"][axis][step]), colour)


def legend(found: Measured, words: Words) -> Iterator[str]:
    x, y = 64, HEIGHT - 34
    for axis, colour in COLOURS.items():
        yield line(x, y - 4, x + 20, y - 4, colour, 5)
        yield text(x + 28, y, words[axis])
        x += 130
    yield text(506, y, words["curves"])
    yield text(64, HEIGHT - 10, words["conditions"].format_map(found.conditions))


def draw(found: Measured, words: Words) -> Iterator[str]:
    """SVG, line by line."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="13">'
    )
    yield f"<title>{words['title'].format_map(found.conditions)}</title>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield from cause(found, words)
    yield from effect(found, words)
    yield from legend(found, words)
    yield "</svg>"
