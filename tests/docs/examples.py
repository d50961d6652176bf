"""``python -m tests.docs.examples``: write the files of ``examples`` into the pages of recipes.

A page has ``<!-- file: NAME -->`` before the block. ``test_recipes.py`` compares blocks and files.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs import pages
from tests.docs.pages import CHECKOUT

EXAMPLES = CHECKOUT / "examples"
_BLOCK = re.compile(r"(<!-- file: ([\w.]+) -->\n```python\n)(.*?)(```\n)", re.DOTALL)


def files() -> dict[str, str]:
    """The examples by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.py"))}


def main() -> None:
    content = files()
    for language in pages.LANGUAGES:
        path: Path = pages.page("recipes", language).path
        text = path.read_text(encoding="utf-8")
        path.write_text(_BLOCK.sub(lambda m: m[1] + content[m[2]] + m[4], text), encoding="utf-8")


if __name__ == "__main__":
    main()
