"""Draw ``docs/images/verify.svg``, the terminal of a real ``deepeyes-patch verify``.

``.lab/0.5.23/bin/python -m tests.docs.terminal`` runs it on that release and writes the file.
``tests/e2e/test_verify.py`` compares the file with its own run.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock
from xml.sax.saxutils import escape

from deepeyes_patch.cli import verify

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "verify.svg"
RELEASE = "0.5.23"

_ABOUT = ("version", "sglang", "transformers", "model", "model_type")
_COLOURS = {"31": "#ff7b72", "32": "#56d364", "1": "#ffffff", "2": "#8b949e", None: "#c9d1d9"}
_LETTER, _LINE, _MARGIN, _BAR = 8.4, 19, 16, 30  # px; a letter of 14 px is 8.4 px wide
_CODE = re.compile(r"\x1b\[([\d;]+)m")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(report: Mapping[str, Any]) -> str:
    """What `verify` writes to a terminal for this report of ``verify --json``."""
    screen = _Terminal()
    terminal = {"TERM": "xterm", "NO_COLOR": ""}
    with contextlib.redirect_stdout(screen), mock.patch.dict("os.environ", terminal):
        about = {name: report[name] for name in _ABOUT}
        verify.show(report["ok"], about, report["cases"], report["rope"])
    return screen.getvalue()


def drawn(report: Mapping[str, Any]) -> str:
    """The picture, as SVG."""
    lines = ["\x1b[2m$\x1b[0m deepeyes-patch verify", *written(report).rstrip().splitlines()]
    columns = max(len(_CODE.sub("", line)) for line in lines)
    width, height = round(columns * _LETTER) + 2 * _MARGIN, len(lines) * _LINE + _BAR + _MARGIN
    dots = "".join(
        f'<circle cx="{_MARGIN + 4 + 18 * number}" cy="16" r="5.5" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    texts = "\n".join(
        f'<text x="{_MARGIN + start * _LETTER:.1f}" y="{_BAR + (number + 1) * _LINE - 4}" '
        f'fill="{_COLOURS[code]}">{escape(text)}</text>'
        for number, line in enumerate(lines)
        for start, text, code in _parts(line)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<!-- Written by `python -m tests.docs.terminal` from a real run. -->
<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
{dots}
<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14" \
xml:space="preserve">
{texts}
</g>
</svg>
"""


def _parts(line: str) -> Iterator[tuple[int, str, str | None]]:
    """(column, text, colour) of each piece between blanks: a font of another width cannot shift columns."""
    code: str | None = None
    column = 0
    for piece in re.split(r"(\x1b\[[\d;]+m)", line):
        if match := _CODE.fullmatch(piece):
            code = None if match[1] == "0" else match[1].split(";")[0]
            continue
        for word in re.finditer(r"\S+(?: \S+)*", piece):
            yield column + word.start(), word[0], code
        column += len(piece)


def main() -> None:
    command = [Path(sys.executable).with_name("deepeyes-patch"), "verify", "--json"]
    done = subprocess.run(command, cwd="/", stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["sglang"] == RELEASE, f"the picture shows SGLang {RELEASE}"
    PICTURE.write_text(drawn(report), encoding="utf-8")


if __name__ == "__main__":
    main()
