"""English and Chinese say the same: the same pages, headings, code, tables and pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.pages import DOCS, LANGUAGES, Page

NAMES = sorted(path.name for path in (DOCS / "en").iterdir())
PICTURES = sorted(path for path in (DOCS / "images").glob("*_en.svg"))


def test_the_same_pages() -> None:
    assert sorted(path.name for path in (DOCS / "zh").iterdir()) == NAMES


def both(name: str) -> list[Page]:
    return [Page(DOCS / language / name) for language in LANGUAGES]


def without_comments(block: pages.Block) -> str:
    """Comments may be translated: from ``#`` on, at the start of a line or after a blank."""
    return re.sub(r"(?m)(^|[ \t]+)# .*$", "", block.text)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_headings(name: str) -> None:
    en, zh = ([level for level, _ in page.headings] for page in both(name))
    assert zh == en


@pytest.mark.parametrize("name", NAMES)
def test_the_same_code(name: str) -> None:
    en, zh = (
        [(block.language, block.name, without_comments(block)) for block in p.blocks] for p in both(name)
    )
    assert zh == en


@pytest.mark.parametrize("name", NAMES)
def test_the_same_tables(name: str) -> None:
    en, zh = ([[len(row) for row in table] for table in page.tables] for page in both(name))
    assert zh == en


@pytest.mark.parametrize("name", NAMES)
def test_the_same_links(name: str) -> None:
    """To the same files, each in its own language; the order may differ, and so do anchors and addresses."""
    en, zh = (
        sorted(target.partition("#")[0] for target in page.links if "://" not in target)
        for page in both(name)
    )
    assert zh == sorted(target.replace("_en.svg", "_zh.svg") for target in en)


def test_the_same_messages() -> None:
    """What the program says is in English in both."""
    en, zh = ([row[0] for table in page.tables for row in table[1:]] for page in both("troubleshooting.md"))
    assert zh == en


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_the_same_pictures(picture: Path) -> None:
    twin = picture.with_name(picture.name.replace("_en.svg", "_zh.svg"))

    def shapes(path: Path) -> list[str]:
        return re.findall(r"<(?:rect|path|line|polyline|circle) [^>]*>", path.read_text(encoding="utf-8"))

    assert shapes(twin) == shapes(picture)
    assert len(shapes(picture)) > 10
