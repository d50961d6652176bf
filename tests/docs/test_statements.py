"""Statements that stood on the pages and were false. They must not come back, in either language."""

from __future__ import annotations

import re

import pytest

from tests.docs import pages
from tests.docs.pages import CHECKOUT, Page

# What was said -> why it is false. Blanks stand for any white space.
FALSE = {
    r"logs no line, the package is not active": "a scheduler of 0.5.7 is live and logs nothing",
    r"line is missing, the patch is not active": "the same",
    r"no log line:\*\* the package is not active": "the same",
    r"没有这一行，(就)?说明": "the same",
    r"too many or swapped|过多或顺序调换": "swapped images of equal token counts cannot be seen",
    r"switched off, it looks at the environment and imports nothing|关闭时，这一行只检查环境变量": (
        "a switch that says off imports the package's __init__"
    ),
    r">nothing is imported<|>不导入任何东西<": "the same",
    r"wrapt`? alone costs every Python process about \d+ ms|多花约 ?\d+ 毫秒": (
        "another page gives 600 ms; the count of instructions is reproducible"
    ),
}
PICTURES = sorted((CHECKOUT / "docs" / "images").glob("*.svg"))


def said(statement: str, text: str) -> bool:
    return re.search(statement.replace(" ", r"\s+"), text) is not None


@pytest.mark.parametrize("statement", FALSE)
def test_it_stands_nowhere(statement: str) -> None:
    paths = [*(page.path for page in pages.pages()), *PICTURES]
    found = [path.name for path in paths if said(statement, path.read_text(encoding="utf-8"))]
    assert found == [], FALSE[statement]


def test_a_false_statement_is_found() -> None:
    assert said(next(iter(FALSE)), "If a process logs no\nline, the package is not active in it.")


@pytest.mark.parametrize("name", ["quickstart", "upgrading", "troubleshooting"])
@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_who_looks_for_the_line_is_told_of_status(name: str, language: str) -> None:
    page: Page = pages.page(name, language)
    assert "`deepeyes-patch status PID`" in page.path.read_text(encoding="utf-8")
