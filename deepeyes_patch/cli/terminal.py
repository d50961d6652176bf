"""How the commands write: 80 columns, colours on a terminal only, errors that say what to do."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Collection
from typing import Any

from deepeyes_patch.cli.output import is_terminal, takes_codes

WIDTH = 80
NARROWEST = 60  # a terminal that is narrower breaks the lines itself
SCHEMA = 1

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}


class CommandError(Exception):
    """The command cannot go on; its message says why and what to do. ``code`` is the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def add_command(commands: Any, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    """A sub-command whose help ends with examples."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples).strip(), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def columns() -> int:
    """The width of the terminal; 80 columns for a pipe or a file, unless ``COLUMNS`` says otherwise."""
    if is_terminal(sys.stdout) or os.environ.get("COLUMNS", "").isdecimal():
        return max(shutil.get_terminal_size((WIDTH, 24)).columns, NARROWEST)
    return WIDTH


def colour(text: str, *names: str) -> str:
    """``text`` in colours, if the output is a terminal and ``NO_COLOR`` is not set."""
    if not names or os.environ.get("NO_COLOR") or not takes_codes(sys.stdout):
        return text
    return f"\x1b[{';'.join(_COLOURS[name] for name in names)}m{text}\x1b[0m"


def printable(text: str) -> str:
    """``text`` on one line, without control characters: other processes wrote it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def cut(text: str, room: int) -> str:
    """``text`` in ``room`` columns; dots stand for the rest. A Chinese character takes two columns."""
    widths = [2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text]
    if sum(widths) <= room:
        return text
    ends = itertools.accumulate(widths)
    return "".join(letter for letter, end in zip(text, ends, strict=True) if end <= room - 3) + "..."


def wrapped(text: str, indent: str = "", first: str | None = None, width: int | None = None) -> str:
    """``text`` in lines of at most ``width`` columns. A longer word (a path) is not broken.

    The default is `WIDTH` columns, or a narrower terminal's.
    """
    return textwrap.fill(
        text,
        width or min(WIDTH, columns()),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(
    rows: list[list[str]],
    right: Collection[int] = (),
    paint: Callable[[int, int, str], str] = lambda row, column, cell: cell,
) -> list[str]:
    """Rows as aligned columns; those in ``right`` are flush right. ``paint`` colours an aligned cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blanks = " " * (width - len(cell))
            painted = paint(number, column, cell) if cell else ""
            cells.append(blanks + painted if column in right else painted + blanks)
        lines.append("  ".join(cells).rstrip())
    return lines


def print_json(command: str, ok: bool, **fields: Any) -> None:
    print(json.dumps({"schema": SCHEMA, "command": command, "ok": ok, **fields}, indent=2))
