"""Long names in tables may break after ``_``, ``/`` and ``.``, so that no name makes a column wide."""

from __future__ import annotations

import re
from pathlib import Path

LONG = 20
_CELL = re.compile(r"(?s)<t([dh])\b.*?</t\1>")
_NAME = re.compile(rf'(?<=<span class="pre">)[^<]{{{LONG},}}(?=</span>)')
_PLACE = re.compile(r"(?<=[_/.])(?=\w)")


def break_names(folder: Path) -> None:
    """In all pages of this folder. The mark is no text: it is neither copied nor searched."""
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        path.write_text(_CELL.sub(_breakable, text), encoding="utf-8")


def _breakable(cell: re.Match[str]) -> str:
    return _NAME.sub(lambda name: _PLACE.sub("<wbr>", name[0]), cell[0])
