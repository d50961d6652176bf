"""Writes the table of seams for people, docs/{en,zh}/seams.md: ``python -m tests.docs.seams``."""

from __future__ import annotations

import re
from pathlib import Path

from deepeyes_patch.seams.rows import Seam
from deepeyes_patch.seams.table import SEAMS
from tests.docs import seams_zh
from tests.docs.pages import DOCS, LANGUAGES

_HEADS = {
    "en": """# Table of seams

This page lists the functions of SGLang that deepeyes-patch wraps, overrides or relies on. It changes nothing
else of SGLang. `python -m tests.docs.seams` writes it from `deepeyes_patch/seams/table.py`; do not edit it.

- **releases**: those of 0.5.3 - 0.5.23 in which the function is there and is used. `make matrix` checks this
  on every release; nothing is decided by it.
- **wrapper**: the function of ours that is put around it; -: it is called or overridden, not wrapped.
""",
    "zh": """# 挂接点总表

本页列出本包包装、重写或依赖的 SGLang 函数。除此之外，本包不改动 SGLang 的任何东西。
本页由 `python -m tests.docs.seams` 根据 `deepeyes_patch/seams/table.py` 生成，请勿手工修改。

- **版本**：0.5.3 - 0.5.23 中有这个函数并用到它的版本。`make matrix` 在每个版本上检查这一列；
  没有代码依据它做决定。
- **包装**：套在这个函数外面的本包函数；-：只是调用或重写，没有包装。
""",
}
_COLUMNS = {
    "en": ("function", "releases", "what we do there", "wrapper"),
    "zh": ("函数", "版本", "本包在其中做什么", "包装"),
}


def path(language: str) -> Path:
    return DOCS / language / "seams.md"


def page(language: str) -> str:
    """The whole page."""
    parts = [_HEADS[language]]
    head = f"| {' | '.join(_COLUMNS[language])} |\n|---|---|---|---|\n"
    for repair in dict.fromkeys(seam.repair for seam in SEAMS):
        parts.append(f"\n## `{repair}`\n\n{head}")
        parts += [_row(seam, language) for seam in SEAMS if seam.repair == repair]
    return "".join(parts)


def _row(seam: Seam, language: str) -> str:
    role, owner, releases, colon = seam.role, seam.owner.shown if seam.owner else "", seam.releases, ": "
    if language == "zh":
        role, owner, colon = seams_zh.role(role), seams_zh.owner(owner), "："
        releases = re.sub(r" -$", " 起", releases)
    owner = f"`{owner}`" if owner.isascii() and owner.isidentifier() else owner
    place = f"`{seam.module.removeprefix('sglang.srt.')}`" + (f" {owner}" if owner else "")
    wrapper = f"`{seam.wrapper}`" if seam.wrapper else "-"
    return f"| {place}{colon}`{seam}` | {releases} | {role} | {wrapper} |\n"


if __name__ == "__main__":
    for name in LANGUAGES:
        path(name).write_text(page(name), encoding="utf-8")
