"""Writes docs/seams.md, the table of seams for people: ``python -m tests.docs.seams``."""

from __future__ import annotations

from deepeyes_patch.seams.rows import Seam
from deepeyes_patch.seams.table import SEAMS
from tests.docs.pages import DOCS

PAGE = DOCS / "seams.md"

_HEAD = """# Seams

Written by `python -m tests.docs.seams` from `deepeyes_patch/seams/table.py`; do not edit. These are the
functions of SGLang's that deepeyes-patch wraps, overrides or relies on. It changes nothing else of SGLang's.

- **releases**: those of 0.5.3 - 0.5.23 in which the function is there and is used. `make matrix` checks this
  on every release; nothing is decided by it.
- **wrapper**: the function of ours that is put around it; -: it is called or overridden, not wrapped.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for repair in dict.fromkeys(seam.repair for seam in SEAMS):
        parts.append(
            f"\n## {repair}\n\n| function | releases | what we do there | wrapper |\n|---|---|---|---|\n"
        )
        parts += [_row(seam) for seam in SEAMS if seam.repair == repair]
    return "".join(parts)


def _row(seam: Seam) -> str:
    owner = f" {seam.owner.shown}" if seam.owner else ""
    place = f"`{seam.module.removeprefix('sglang.srt.')}`{owner}"
    wrapper = f"`{seam.wrapper}`" if seam.wrapper else "-"
    return f"| {place}: `{seam}` | {seam.releases} | {seam.role} | {wrapper} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
