"""The drawing of the layers on the page of design is the one that the code makes."""

from __future__ import annotations

import pytest

from tests import graph
from tests.docs import pages
from tests.docs.pages import LANGUAGES


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_drawing_is_made_from_the_code(language: str) -> None:
    """``python -m tests.graph --mermaid`` prints what has to stand there."""
    (block,) = (block for block in pages.page("design", language).blocks if block.name == "layers")
    assert block.language == "mermaid", "GitHub draws these"
    assert block.text == graph.mermaid()
