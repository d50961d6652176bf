"""What ``doctor --deep`` makes of the answers of an SGLang with the repairs off."""

from __future__ import annotations

from typing import Any

import pytest

from deepeyes_patch.cli import unaided, verdicts

RIGHT = {**dict.fromkeys(verdicts.PARTS, 0), "input_ids": [7]}
CASES: list[dict[str, Any]] = [
    {"name": "a text", "kind": "text", "expected": RIGHT},
    {"name": "short", "kind": "ids", "expected": RIGHT},
    {"name": "expanded", "kind": "ids", "expected": RIGHT},
    {"name": "a stray one", "kind": "refused", "expected": None},
]
TEXT = {"error": "RuntimeError: a text prompt does not count"}
REFUSED = {"error": "ValueError: no", "refused": True}
FAILED = {"error": "AssertionError: ", "refused": False}


@pytest.mark.parametrize(
    ("answers", "right", "wrong"),
    [
        ([TEXT, RIGHT, RIGHT, REFUSED], 3, None),
        ([TEXT, RIGHT, FAILED], 1, "expanded: HTTP 500, AssertionError"),
        ([TEXT, RIGHT, RIGHT, RIGHT], 2, "a stray one: served"),
        ([TEXT, RIGHT, {**RIGHT, "input_ids": [7, 8]}, REFUSED], 2, "expanded: 2 of 1 ids"),
        ([TEXT, {**RIGHT, "offsets": 1}, REFUSED], 0, "short: wrong offsets"),
    ],
)
def test_judge(answers: list[dict[str, Any]], right: int, wrong: str | None) -> None:
    assert unaided.judge(CASES, answers) == {"right": right, "of": 3, "wrong": wrong, "error": None}
