"""No page of the site is wider than a screen: tables and code scroll in their boxes. In a browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs import browser, site
from tests.docs.pages import LANGUAGES
from tests.matrix import brief

BROWSER = browser.chromium()
DESKTOP, PHONE = 1280, 390

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium on PATH, which measures the pages (Debian: apt install chromium)"
)


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    assert BROWSER
    folder = site.build()
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    return browser.measure(BROWSER, folder, [*pages, browser.WIDE], (DESKTOP, PHONE))


def test_nothing_stands_outside_of_its_page(found: list[dict[str, Any]]) -> None:
    wrong = [
        f"{page['path']} at {page['width']}: {what}"
        for page in found
        if page["path"] != f"/{browser.WIDE}"
        for what in page["outside"]
    ]
    assert wrong == []
    assert len(found) > 2 * 2 * 25


def test_a_wide_page_is_seen(found: list[dict[str, Any]]) -> None:
    for page in found:
        if page["path"] == f"/{browser.WIDE}":
            assert [what.partition(":")[0] for what in page["outside"]] == ["PRE", "the page"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_of_releases_fits_without_scrolling(found: list[dict[str, Any]], language: str) -> None:
    (page,) = (p for p in found if p["path"] == f"/{language}/compatibility.html" and p["width"] == DESKTOP)
    fits = {table["head"]: table["fits"] for table in page["tables"]}
    assert fits[" ".join(brief.COLUMNS[language])]


def test_the_other_language_is_in_sight(found: list[dict[str, Any]]) -> None:
    """Beside the page on a wide screen, above it on a phone, where the sidebar is closed."""
    titles = site.module("navigation").LANGUAGES
    for page in found:
        language = page["path"].split("/")[1]
        if language in titles:
            seen = set(page["languages"])
            others = set(titles.values()) - {titles[language]}
            assert seen == (set(titles.values()) if page["width"] == DESKTOP else others), page["path"]


def test_every_block_of_code_has_a_button_that_copies_it(found: list[dict[str, Any]]) -> None:
    assert sum(page["blocks"] for page in found) > 100
    for page in found:
        assert page["buttons"] == page["blocks"], page["path"]
