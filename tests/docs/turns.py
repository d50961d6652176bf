"""Draws the error of log-probs, turn by turn: `tests.docs.chart` writes the pictures of both languages.

The figures are those of the second table in ``docs/en/smoke.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tests.docs import pages
from tests.docs.svg import EXACT, GRID, INK, LOST, WRONG, head, text

WIDTH, LEFT, RIGHT = 480, 64, 456
TOP, PANEL, GAP = 106, 130, 46
LOWEST, HIGHEST = -7, 0  # powers of ten
FAILED = 0.45  # the power of ten at which a request without an answer stands
KINDS = ("expanded ids", "one placeholder per image", "patched")
STYLES = {
    "expanded ids": f'stroke="{WRONG}"',
    "one placeholder per image": f'stroke="{WRONG}" stroke-dasharray="6 4"',
    "patched": f'stroke="{EXACT}"',
}
WORDS = {
    "en": {
        "title": "Largest error of a log-prob, turn by turn (log scale)",
        "expanded ids": "stock, expanded ids",
        "one placeholder per image": "stock, one placeholder per image",
        "patched": "with deepeyes-patch, expanded ids",
        "turn": "turn {}",
        "lost": "above: lost",
        "failed": "{}: no log-probs",
    },
    "zh": {
        "title": "对数概率的最大误差，逐轮（对数刻度）",
        "expanded ids": "原版，展开的 id",
        "one placeholder per image": "原版，每图一个占位符",
        "patched": "使用 deepeyes-patch，展开的 id",
        "turn": "第 {} 轮",
        "lost": "以上：出错",
        "failed": "{}：没有对数概率",
    },
}


def measured() -> dict[str, dict[str, list[str]]]:
    """For each release and kind of rollout: the largest error in each turn, or the status of the answer."""
    head_row, *rows = pages.page("smoke").tables[1]
    turns = [i for i, cell in enumerate(head_row) if cell.startswith("turn ")]
    result: dict[str, dict[str, list[str]]] = {}
    for cells in rows:
        row = dict(zip(head_row, cells, strict=True))
        kind = "patched" if row["server"] == "patched" else row["rollout"]
        result.setdefault(row["SGLang"], {})[kind] = [cells[i] for i in turns]
    return result


def _x(turn: int, turns: int) -> float:
    return LEFT + 24 + (RIGHT - LEFT - 48) * turn / (turns - 1)


def _y(top: float, power: float) -> float:
    return top + PANEL * (HIGHEST - power) / (HIGHEST - LOWEST)


def _panel(words: dict[str, str], release: str, kinds: dict[str, list[str]], top: float) -> Iterator[str]:
    turns = len(next(iter(kinds.values())))
    yield text(12, top - 26, f"SGLang {release}", weight="bold")
    for power in range(LOWEST, HIGHEST + 1):
        y = _y(top, power)
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{GRID}"/>'
        if power % 2 or power == HIGHEST:
            yield text(LEFT - 8, y + 5, f"1e{power}" if power else "1", "end")
    limit = _y(top, math.log10(LOST))
    yield f'<path d="M{LEFT} {limit:.1f}H{RIGHT}" stroke="{INK}" stroke-dasharray="2 3"/>'
    yield text(RIGHT, limit - 4, words["lost"], "end", size=12)
    for turn in range(turns):
        yield text(_x(turn, turns), top + PANEL + 16, words["turn"].format(turn + 1), "middle", size=12)
    for kind in KINDS:
        yield from _curve(words, kind, kinds[kind], top)


def _curve(words: dict[str, str], kind: str, values: Sequence[str], top: float) -> Iterator[str]:
    points = []
    for turn, value in enumerate(values):
        x = _x(turn, len(values))
        if value.startswith("HTTP "):
            y = _y(top, FAILED)
            yield f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" stroke="{WRONG}" stroke-width="3"/>'
            yield text(x + 12, y + 5, words["failed"].format(value), colour=WRONG, size=12)
        elif value != "-":
            points.append((x, _y(top, math.log10(float(value)))))
    colour = EXACT if kind == "patched" else WRONG
    if points:
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        yield f'<path d="M{line}" {STYLES[kind]} fill="none" stroke-width="2.5"/>'
    for x, y in points:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'


def picture(language: str) -> str:
    words, releases = WORDS[language], measured()
    height = TOP + len(releases) * (PANEL + GAP + 24) - 14
    parts = [*head(WIDTH, height, words["title"]), text(12, 24, words["title"], weight="bold")]
    for row, kind in enumerate(KINDS):
        y = 44 + 18 * row
        parts.append(f'<path d="M12 {y - 5}H44" {STYLES[kind]} stroke-width="2.5"/>')
        parts.append(text(52, y, words[kind], size=13))
    for number, (release, kinds) in enumerate(releases.items()):
        top = TOP + 36 + number * (PANEL + GAP + 24)
        parts += _panel(words, release, kinds, top)
    return "\n".join([*parts, "</svg>", ""])
