"""The page about seams is the table of seams, in both languages."""

from __future__ import annotations

import pytest

from deepeyes_patch.seams.table import SEAMS
from tests.docs import seams, seams_zh
from tests.docs.pages import LANGUAGES


def test_each_role_has_a_chinese_text() -> None:
    roles = {seam.role for seam in SEAMS}
    missing = sorted(roles - set(seams_zh.ROLES))
    assert missing == [], "give these a Chinese text in ROLES of tests/docs/seams_zh.py"
    assert sorted(set(seams_zh.ROLES) - roles) == [], "no row says these any more: remove them from ROLES"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_is_the_table(language: str) -> None:
    page = seams.page(language)
    assert seams.path(language).read_text(encoding="utf-8") == page, "run python -m tests.docs.seams"


def test_a_text_without_chinese_is_named() -> None:
    with pytest.raises(KeyError, match="no Chinese for 'wash the ids'"):
        seams_zh.role("wash the ids")
    with pytest.raises(KeyError, match="no Chinese for 'some classes'"):
        seams_zh.owner("some classes")
    assert seams_zh.owner("MRotaryEmbedding") == "MRotaryEmbedding"
