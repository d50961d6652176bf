"""The numbers on the first screen stand in the pages that they link to, in both languages."""

from __future__ import annotations

import pytest

from tests.docs.pages import CHECKOUT, Page

READMES = [Page(CHECKOUT / name) for name in ("README.md", "README.zh-CN.md")]
# (in the first screen's table, what the linked page must hold)
NUMBERS = [
    ("0.5.23", "| 0.5.23 | {stock} | {ids} | - | - | - | - | - | - | {all} (HTTP 500: 6) |"),
    ("0.18", "| 0.5.3 | {stock} | {ids} | 6652 | 7238 | 148 | 1.8e-01 |"),
    ("1e-6", "| 9138 | 9138 | 192 | 9.5e-07 |"),
    ("112 ms", "| 112.5 | 27.2 | 0.24 |"),
    ("27 ms", "| 112.5 | 27.2 | 0.24 |"),
]
WORDS = [
    {"stock": "stock", "ids": "expanded ids", "all": "6 of 6"},
    {"stock": "原版", "ids": "展开的 id", "all": "6/6"},
]


@pytest.mark.parametrize(("page", "words"), [*zip(READMES, WORDS, strict=True)], ids=["en", "zh"])
def test_each_number_stands_in_its_page(page: Page, words: dict[str, str]) -> None:
    first = page.tables[0]
    shown = " ".join(cell for row in first for cell in row)
    targets = {CHECKOUT / link.partition("#")[0] for link in page.links if "docs/" in link and ".md" in link}
    linked = "".join(path.read_text(encoding="utf-8") for path in targets)
    for number, evidence in NUMBERS:
        assert number in shown, number
        assert evidence.format(**words) in linked, evidence


def test_the_first_lines_link_to_the_other_language() -> None:
    english, chinese = READMES
    assert english.links[0] == chinese.path.name
    assert chinese.links[0] == english.path.name


@pytest.mark.parametrize("page", READMES, ids=["en", "zh"])
def test_the_first_screen_shows_a_terminal_and_says_what_was_never_run(page: Page) -> None:
    before = page.path.read_text(encoding="utf-8").partition("\n## ")[0]
    assert "docs/images/verify.svg" in before
    assert "never_run.md" in before
    assert "IndexError: index 1 is out of bounds for dimension 0 with size 1" in before, (
        "people search for it"
    )
    assert before.count("\n") < 40
