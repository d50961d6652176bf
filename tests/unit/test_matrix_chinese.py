"""The page of all releases in Chinese: the same figures as in the English page, and no text left out."""

from __future__ import annotations

import pytest

from tests.lab.environments import CHECKOUT
from tests.matrix import chinese, table
from tests.unit.test_matrix import entry


def test_the_chinese_page_is_made_from_the_english_one() -> None:
    docs = CHECKOUT / "docs"
    made = chinese.page((docs / chinese.ENGLISH).read_text())
    assert (docs / chinese.CHINESE).read_text() == made, "run `python3 -m tests.matrix.chinese`"


def test_a_chinese_row() -> None:
    """The same figures, and words in Chinese; of lines of two ages."""
    native = {"native": True, "error": 0.0, "right": True, "yarn": "kept"}
    new = entry("0.5.9", probe__stock__rope=native, sources="new", elsewhere={"Python 3.12": "HTTP 500"})
    for release in (stale := entry("0.5.3", server=None), new):
        release["probe"]["stock"]["faults"] = {kind: {"short": "", "expanded": "x"} for kind in table.KINDS}
    page = chinese.page(table.dated(table.document([stale, new]), "new"))
    assert "下面 2 行中有 1 行（0.5.3）测得之后，本包又有改动" in page
    assert "| 否，已修补；YaRN 已修补 | 7 张不同，已修补 | 2/4 | 4/4 |" in page
    assert (
        "| Qwen3-VL：1 个精确，1 个拒绝；Qwen2.5-VL：1 个精确，1 个拒绝 | 是；Python 3.12：否 | `new` |"
        in page
    )
    assert page.endswith("| 每图一个占位符 | 全部 | 全部 |\n| 已展开 | 无 | 无 |\n")


def test_a_text_without_chinese_is_named() -> None:
    text = table.document([entry("0.5.3")])
    with pytest.raises(KeyError, match="PIECES has no Chinese for 'as new'"):
        chinese.page(text.replace("7 differ, repaired", "as new"))
    with pytest.raises(KeyError, match="CASES has no Chinese for 'shorter'"):
        chinese.page(text.replace("| short |", "| shorter |"))
    with pytest.raises(KeyError, match="AGES has no Chinese for 'All lines are old'"):
        chinese.page(text.replace(table.CURRENT, "All lines are old"))
    with pytest.raises(ValueError, match="edit both"):
        chinese.page(text.replace("do not edit", "edit at will"))
