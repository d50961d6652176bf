"""The pages say how to install the package today; one constant flips them at the first release."""

from __future__ import annotations

import re

import pytest

from deepeyes_patch.cli import project
from tests.docs import install, pages
from tests.docs.install import TEXTS, Text
from tests.docs.pages import Page


def named(text: Text) -> str:
    return f"{text.page}: {text.index.strip()[:40]}"


@pytest.mark.parametrize("text", TEXTS, ids=named)
def test_each_place_follows_the_constant(text: Text) -> None:
    shown = (pages.CHECKOUT / text.page).read_text(encoding="utf-8")
    wanted, other = (text.index, text.checkout) if project.ON_AN_INDEX else (text.checkout, text.index)
    assert shown.count(wanted) == 1
    assert other not in shown.replace(wanted, "")


def test_the_pages_can_be_flipped_and_back() -> None:
    before = install.pages()
    flipped = install.rewritten(before, not project.ON_AN_INDEX)
    assert {name for name in before if flipped[name] != before[name]} == {text.page for text in TEXTS}
    assert install.rewritten(flipped, project.ON_AN_INDEX) == before


# pip, asked for the name of this package instead of a folder. Releasing is about what an index has.
BY_NAME = re.compile(r"(?:pip|uv pip) (?:install|download|wheel)[^`|\n]*(?<![/\w.-])deepeyes-patch(?![\w.])")


@pytest.mark.parametrize("page", pages.pages(), ids=str)
def test_no_other_page_installs_from_an_index_that_has_nothing(page: Page) -> None:
    if not project.ON_AN_INDEX and page.path.stem not in ("releasing", "CHANGELOG"):
        assert BY_NAME.findall(page.path.read_text(encoding="utf-8")) == []


def test_what_a_wrong_command_looks_like() -> None:
    for command in ("pip install deepeyes-patch", "pip install --force-reinstall deepeyes-patch`"):
        assert BY_NAME.search(command), command
    for command in ("pip install ./deepeyes-patch", "pip install --no-cache-dir /opt/deepeyes-patch"):
        assert not BY_NAME.search(command), command
