"""The Chinese pages use one term for one thing: the spellings that the glossary rules out do not occur."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.pages import DOCS, Page

GLOSSARY = pages.page("glossary", "zh")
PAGES = [Page(path) for path in sorted((DOCS / "zh").glob("*.md")) if path != GLOSSARY.path]
BLANK = "\0"  # in place of what is no prose


def rows(page: Page) -> list[list[str]]:
    (table,) = page.tables
    return table[1:]


def ruled_out() -> list[tuple[str, str]]:
    """(term, spelling that is not to be used), in the order of the glossary."""
    return [
        (term, spelling) for _, term, _, spellings in rows(GLOSSARY) for spelling in spellings.split("、")
    ]


def pattern(spelling: str) -> re.Pattern[str]:
    """Finds the spelling also across the end of a line; Latin letters only as whole words."""
    letters = [re.escape(letter) for letter in spelling if letter != " "]
    text = r"\s*".join(letters) if not spelling.isascii() else re.escape(spelling)
    before = r"(?<![A-Za-z0-9_-])" if spelling[0].isascii() else ""
    after = r"(?![A-Za-z0-9_-])" if spelling[-1].isascii() else ""
    return re.compile(before + text + after, re.IGNORECASE)


def prose(page: Page) -> str:
    """The text of a page, line by line as in the file, without code, comments and targets of links."""
    lines = page.path.read_text(encoding="utf-8").split("\n")
    for token in page.tokens:
        if token.type in ("fence", "code_block", "html_block") and token.map:
            lines[slice(*token.map)] = [BLANK] * (token.map[1] - token.map[0])

    def blank(found: re.Match[str]) -> str:
        return BLANK + "\n" * found[0].count("\n") + BLANK

    return re.sub(r"(?s)`[^`]+`|(?<=\])\([^)]*\)", blank, "\n".join(lines))


def problems(page: Page) -> Iterator[str]:
    text = prose(page)
    for term, spelling in ruled_out():
        # A spelling may be part of its own term, as in "worker 工作进程".
        kept = [found.span() for found in pattern(term).finditer(text)]
        for found in pattern(spelling).finditer(text):
            if not any(start <= found.start() and found.end() <= end for start, end in kept):
                line = text.count("\n", 0, found.start()) + 1
                yield f"{page.path.name}:{line}: {spelling!r}, the glossary says {term!r}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_page_keeps_to_the_glossary(page: Page) -> None:
    assert list(problems(page)) == []


def test_both_glossaries_hold_the_same_terms() -> None:
    en, zh = ([(row[0], row[1], row[3]) for row in rows(p)] for p in (pages.page("glossary", "en"), GLOSSARY))
    assert zh == en


def test_no_term_is_ruled_out_by_another() -> None:
    for _, term, _, _ in rows(GLOSSARY):
        assert [s for of, s in ruled_out() if of != term and pattern(s).search(term)] == [], term


def test_what_a_page_that_does_not_keep_to_it_looks_like(tmp_path: Path) -> None:
    path = tmp_path / "made_up.md"
    path.write_text(
        "# 虚构\n\n`load` 载入图片，见 [span](span.md)\n的区\n段。\n\n"
        "worker\n工作进程和工作进程；提示词，`prompt`，spanning。\n\n"
        "    载入 span 的代码\n\n最后一眼\n",
        encoding="utf-8",
    )
    found = [problem.partition(",")[0] for problem in problems(Page(path))]
    assert sorted(found) == [
        "made_up.md:12: '最后一眼'",
        "made_up.md:3: 'span'",
        "made_up.md:3: '载入'",
        "made_up.md:4: '区段'",
        "made_up.md:8: '工作进程'",
    ]
