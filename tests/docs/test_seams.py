"""The page about seams is the table of seams."""

from __future__ import annotations

from tests.docs import seams


def test_the_page_is_the_table() -> None:
    assert seams.PAGE.read_text(encoding="utf-8") == seams.page(), "run python -m tests.docs.seams"
