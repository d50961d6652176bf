"""``python3 -m tests.matrix.brief``: from ``docs/en/releases.md`` to the short table of each language.

Standard library only. `tests.matrix.run` calls it whenever it writes the page.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.matrix import table

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("en/compatibility.md", "zh/compatibility.md")
COLUMNS = {
    "en": ("SGLang", "transformers", "stock", "patched", "patched server right on"),
    "zh": ("SGLang", "transformers", "原版", "修补后", "修补后服务器正确的版本"),
}
BEGIN, END = "<!-- made by tests/matrix/brief.py -->\n\n", "\n<!-- end -->\n"
_PLACE = re.compile(f"(?s)(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})")

Row = dict[str, str]


def rows(text: str) -> Iterator[tuple[str, ...]]:
    """Neighbours with the same transformers and the same counts are one row."""
    lines = [dict(zip(table.COLUMNS, cells, strict=True)) for cells in table.releases(text)]
    for (transformers, stock, patched), grouped in itertools.groupby(
        lines, key=lambda line: (line["transformers"], line["stock"], line["patched"])
    ):
        group = list(grouped)
        first, last = group[0]["SGLang"], group[-1]["SGLang"]
        yield (
            first if first == last else f"{first} - {last}",
            transformers,
            *(count.replace(" of ", "/") for count in (stock, patched)),
            _servers(group),
        )


def _servers(group: Sequence[Row]) -> str:
    """The releases whose server was right, and, should there be one, whose was not; -: none was tried."""
    words = []
    for line in group:
        answers = [answer.rpartition(": ")[2] for answer in line["server"].split("; ")]
        if set(answers) == {"yes"}:
            words.append(line["SGLang"])
        elif answers != ["-"]:
            words.append(f"{line['SGLang']}: NO")
    return ", ".join(words) or "-"


def brief(text: str, language: str) -> str:
    head = COLUMNS[language]
    cells = [head, ("---",) * len(head), *rows(text)]
    return (
        "".join(f"| {' | '.join(row)} |\n" for row in cells)
        .replace("| --- ", "|---")
        .replace("--- |", "---|")
    )


def updated(page: str, text: str, language: str) -> str:
    """A page with its short table, from the whole one."""
    if not _PLACE.search(page):
        raise ValueError(f"the page has no place for the table: {BEGIN!r}, {END!r}")
    return _PLACE.sub(lambda _: brief(text, language), page)


def write(docs: Path = DOCS) -> None:
    text = (docs / "en" / "releases.md").read_text(encoding="utf-8")
    for name in PAGES:
        path = docs / name
        path.write_text(updated(path.read_text(encoding="utf-8"), text, name[:2]), encoding="utf-8")


if __name__ == "__main__":
    write()
