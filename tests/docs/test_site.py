"""The built site: a folder for each language with the same pages, and a page where both begin."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs import pages, site
from tests.docs.pages import DOCS, LANGUAGES

NAVIGATION = site.module("navigation")
# What a page of either language may have around it: names, and the switch of the language.
NAMES = {"deepeyes-patch", "English", "中文", "Furo", "Language · 语言"}


@pytest.fixture(scope="module", autouse=True)
def built() -> Path:
    return site.build()


def linked(path: Path) -> set[Path]:
    """The files that a page links to."""
    targets = [urlsplit(link) for link in site.html(path).links]
    return {(path.parent / unquote(t.path)).resolve() for t in targets if t.path and not t.scheme}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_site_has_every_page(language: str) -> None:
    written = {path.stem for path in (DOCS / language).glob("*.md")}
    assert set(site.names(language)) == written
    assert set(NAVIGATION.pages()) == written - {"index"}
    assert len(NAVIGATION.pages()) == len(set(NAVIGATION.pages()))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_links_to_itself_in_the_other_language(language: str) -> None:
    folder = site.SITE / language
    for path in folder.rglob("*.html"):
        name = path.relative_to(folder)
        twins = {site.SITE / other / name for other in LANGUAGES}
        assert twins <= linked(path), path


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_is_in_the_navigation_of_every_page(language: str) -> None:
    folder = site.SITE / language
    everywhere = {folder / f"{name}.html" for name in NAVIGATION.pages()}
    for path in folder.rglob("*.html"):
        assert everywhere - {path} <= linked(path), path


def test_every_link_of_the_site_leads_somewhere() -> None:
    wrong = []
    for path in site.SITE.rglob("*.html"):
        for link in site.html(path).links:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            anchor = unquote(target.fragment)
            is_there = file.is_file() and (
                file.suffix != ".html" or not anchor or anchor in site.html(file).ids
            )
            if not is_there:
                wrong.append(f"{path.relative_to(site.SITE)}: {link}")
    assert wrong == []


def test_each_language_has_words_of_its_own_around_its_pages() -> None:
    """Words that stand around every English page are the theme's; none may stand around a Chinese one."""
    around = {
        language: {
            name: site.html(site.SITE / language / f"{name}.html").chrome for name in site.names(language)
        }
        for language in LANGUAGES
    }
    english = set.intersection(*around["en"].values())
    assert {"Back to top", "Start", "Toggle site navigation sidebar"} <= english
    for name, chrome in around["zh"].items():
        assert not chrome & set(site.module("chrome").CHINESE), name
        assert chrome & english <= NAMES, name


def test_chinese_lines_are_joined_without_a_blank() -> None:
    sources = [
        page.path.read_text(encoding="utf-8") for page in pages.pages() if page.path.parent.name == "zh"
    ]
    broken = r"[、。，；：）\u4e00-\u9fff]\n[\u4e00-\u9fff]"
    assert sum(len(re.findall(broken, text)) for text in sources) > 10
    for name in site.names("zh"):
        for text in site.html(site.SITE / "zh" / f"{name}.html").texts:
            assert not re.search(broken, text), name


def test_each_page_says_its_language() -> None:
    for language, name in {"en": "en", "zh": "zh-CN"}.items():
        assert {site.html(path).language for path in (site.SITE / language).rglob("*.html")} == {name}


def test_the_site_begins_with_both_languages_and_the_problem() -> None:
    first = site.SITE / "index.html"
    assert {site.SITE / language / "index.html" for language in LANGUAGES} <= linked(first)
    assert site.SITE / "images" / "verify.svg" in linked(first)
    text = first.read_text(encoding="utf-8")
    assert text.count("IndexError: index 1 is out of bounds") == 2
    for name in ("README.md", "README.zh-CN.md"):
        table = pages.Page(pages.CHECKOUT / name).tables[0]
        for row in table[1:]:
            assert f"<td>{row[-1]}</td>" in text
    assert text.count("<pre>") == 2
