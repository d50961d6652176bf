"""``python -m tests.docs.chart``: draw the largest error of a log-prob, stock and patched, as measured.

The figures are those of the table in ``docs/en/smoke.md``. ``test_chart.py`` compares the pictures with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from xml.sax.saxutils import escape

from tests.docs import pages
from tests.docs.pages import DOCS, LANGUAGES

# Narrow, so that a phone shows its letters at 11 px.
WIDTH, LEFT, RIGHT = 480, 172, 424
ROW, GROUP, TOP = 26, 34, 64
LOWEST, HIGHEST = -7, 0  # powers of ten
LOST = 0.005  # a sample with such an error is lost, as the page says
WRONG, EXACT, INK, GRID = "#cf222e", "#1a7f37", "#24292f", "#d0d7de"

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
    head, *rows = pages.page("smoke").tables[0]
    result: dict[str, dict[str, str]] = {}
    for cells in rows:
        row = dict(zip(head, cells, strict=True))
        kinds = result.setdefault(row["SGLang"], {})
        kind = "patched" if row["server"] == "patched" else row["rollout"]
        value = row["max"] if row["max"] != "-" else row["lost"].partition(" (")[0]
        kinds[kind] = max(value, kinds[kind], key=float) if kind in kinds else value
    return result


def _x(value: float) -> float:
    return LEFT + (RIGHT - LEFT) * (math.log10(value) - LOWEST) / (HIGHEST - LOWEST)


def _text(
    x: float, y: float, words: str, anchor: str = "start", colour: str = INK, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )


def _shapes(words: dict[str, str], height: int) -> Iterator[str]:
    yield f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    yield _text(12, 24, words["title"], weight="bold")
    for power in range(LOWEST, HIGHEST + 1):
        x = _x(10.0**power)
        yield f'<path d="M{x:.0f} {TOP - 8}V{height - 12}" stroke="{GRID}"/>'
        if power % 2 or power == HIGHEST:
            yield _text(x, TOP - 14, f"1e{power}" if power else "1", "middle")
    y = TOP
    for release, kinds in measured().items():
        yield _text(12, y + 18, f"SGLang {release}", weight="bold")
        y += GROUP - 8
        for kind in KINDS:
            yield from _bar(words, kind, kinds[kind], y)
            y += ROW
        y += 8


def _bar(words: dict[str, str], kind: str, value: str, y: int) -> Iterator[str]:
    yield _text(LEFT - 8, y + 16, words[kind], "end")
    if re.fullmatch(r"\d+ of \d+", value):
        number = value.replace(" of ", "/")
        yield _text(LEFT + 6, y + 16, words["lost"].format(number), colour=WRONG, weight="bold")
        return
    colour = WRONG if float(value) >= LOST else EXACT
    end = _x(float(value))
    yield f'<rect x="{LEFT}" y="{y + 3}" width="{end - LEFT:.1f}" height="{ROW - 8}" fill="{colour}"/>'
    yield _text(end + 6, y + 16, value)


def picture(language: str) -> str:
    groups = len(measured())
    height = TOP + groups * (GROUP + len(KINDS) * ROW) + 12
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="14">'
    )
    title = f"<title>{escape(WORDS[language]['title'])}</title>"
    return "\n".join([head, title, *_shapes(WORDS[language], height), "</svg>", ""])


if __name__ == "__main__":
    for name in LANGUAGES:
        (DOCS / "images" / f"smoke_error_{name}.svg").write_text(picture(name), encoding="utf-8")
