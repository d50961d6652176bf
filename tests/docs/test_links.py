"""Links lead somewhere: files and anchors as GitHub shows them. What is outside is not fetched."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest

from tests.docs import pages, site
from tests.docs.pages import CHECKOUT, DOCS, LANGUAGES, Page

ALL = pages.pages()
NAVIGATION = site.module("navigation")


def problems(page: Page) -> list[str]:
    found = []
    for target in page.links:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            if parts.scheme not in ("http", "https") or "." not in parts.netloc or " " in target:
                found.append(f"{target}: no address")
            continue
        path = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
        if not path.is_relative_to(CHECKOUT) or not path.is_file():
            found.append(f"{target}: no such file")
        elif parts.fragment and unquote(parts.fragment) not in Page(path).anchors:
            found.append(f"{target}: no such heading")
    return found


@pytest.mark.parametrize("page", ALL, ids=str)
def test_every_link_leads_somewhere(page: Page) -> None:
    assert problems(page) == []


def test_what_a_broken_link_looks_like(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = DOCS / "en" / "index.md"
    broken = (
        "[a](nowhere.md) [b](switches.md#nowhere) [c](#nowhere) [d](https://x y) ![e](../images/none.svg)"
    )
    page = Page(path)
    vars(page)["tokens"] = pages._PARSER.parse(broken)
    assert [problem.partition(":")[0] for problem in problems(page)] == [
        "nowhere.md",
        "switches.md#nowhere",
        "#nowhere",
        "../images/none.svg",
    ]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_first_page_links_to_every_page_in_the_order_of_the_navigation(language: str) -> None:
    targets = pages.page("index", language).links
    assert [target.removesuffix(".md") for target in targets] == list(NAVIGATION.pages())
    headings = [text for level, text in pages.page("index", language).headings if level == 2]
    assert headings == [titles[language] for titles, _ in NAVIGATION.SECTIONS]


def test_nothing_of_this_machine_is_in_the_pages() -> None:
    for page in ALL:
        text = page.path.read_text(encoding="utf-8")
        assert str(CHECKOUT) not in text, page
        assert "file://" not in text, page
