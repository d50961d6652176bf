"""``python -m tests.docs.chart``: draw the largest error of a log-prob, stock and patched, as measured.

The figures are those of the first table in ``docs/en/smoke.md``. ``test_chart.py`` compares the pictures with
it. The picture of the errors in each turn is drawn by `tests.docs.turns`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from tests.docs import pages, turns
from tests.docs.pages import DOCS, LANGUAGES
from tests.docs.svg import EXACT, GRID, LOST, WRONG, head, text

# Narrow, so that a phone shows its letters at 11 px.
WIDTH, LEFT, RIGHT = 480, 172, 424
ROW, GROUP, TOP = 26, 34, 64
LOWEST, HIGHEST = -7, 0  # powers of ten

WORDS = {
    "en": {
        "title": "Largest error of a log-prob (log scale)",
        "expanded ids": "stock, expanded ids",
        "one placeholder per image": "stock, 1 placeholder",
        "patched": "with deepeyes-patch",
        "lost": "HTTP 500: {} lost",
    },
    "zh": {
        "title": "对数概率的最大误差（对数刻度）",
        "expanded ids": "原版，展开的 id",
        "one placeholder per image": "原版，一个占位符",
        "patched": "使用 deepeyes-patch",
        "lost": "HTTP 500：{} 出错",
    },
}
KINDS = ("expanded ids", "one placeholder per image", "patched")


def measured() -> dict[str, dict[str, str]]:
    """For each release and kind of rollout: the largest error, or how many samples HTTP 500 took."""
    columns, *rows = pages.page("smoke").tables[0]
    result: dict[str, dict[str, str]] = {}
    for cells in rows:
        row = dict(zip(columns, cells, strict=True))
        kinds = result.setdefault(row["SGLang"], {})
        kind = "patched" if row["server"] == "patched" else row["rollout"]
        value = row["max"] if row["max"] != "-" else row["lost"].partition(" (")[0]
        kinds[kind] = max(value, kinds[kind], key=float) if kind in kinds else value
    return result


def _x(value: float) -> float:
    return LEFT + (RIGHT - LEFT) * (math.log10(value) - LOWEST) / (HIGHEST - LOWEST)


def _shapes(words: dict[str, str], height: int) -> Iterator[str]:
    yield text(12, 24, words["title"], weight="bold")
    for power in range(LOWEST, HIGHEST + 1):
        x = _x(10.0**power)
        yield f'<path d="M{x:.0f} {TOP - 8}V{height - 12}" stroke="{GRID}"/>'
        if power % 2 or power == HIGHEST:
            yield text(x, TOP - 14, f"1e{power}" if power else "1", "middle")
    y = TOP
    for release, kinds in measured().items():
        yield text(12, y + 18, f"SGLang {release}", weight="bold")
        y += GROUP - 8
        for kind in KINDS:
            yield from _bar(words, kind, kinds[kind], y)
            y += ROW
        y += 8


def _bar(words: dict[str, str], kind: str, value: str, y: int) -> Iterator[str]:
    yield text(LEFT - 8, y + 16, words[kind], "end")
    if re.fullmatch(r"\d+ of \d+", value):
        number = value.replace(" of ", "/")
        yield text(LEFT + 6, y + 16, words["lost"].format(number), colour=WRONG, weight="bold")
        return
    colour = WRONG if float(value) >= LOST else EXACT
    end = _x(float(value))
    yield f'<rect x="{LEFT}" y="{y + 3}" width="{end - LEFT:.1f}" height="{ROW - 8}" fill="{colour}"/>'
    yield text(end + 6, y + 16, value)


def picture(language: str) -> str:
    words, groups = WORDS[language], len(measured())
    height = TOP + groups * (GROUP + len(KINDS) * ROW) + 12
    return "\n".join([*head(WIDTH, height, words["title"]), *_shapes(words, height), "</svg>", ""])


PICTURES = {"smoke_error": picture, "smoke_turns": turns.picture}

if __name__ == "__main__":
    for picture_name, draw in PICTURES.items():
        for name in LANGUAGES:
            (DOCS / "images" / f"{picture_name}_{name}.svg").write_text(draw(name), encoding="utf-8")
