"""The pages of the documentation as data: headings, links, tables and blocks of code."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
LANGUAGES = ("en", "zh")

_PARSER = MarkdownIt("commonmark").enable("table")
# `<!-- block: NAME -->` or `<!-- file: NAME -->` directly before a block of code
_MARK = re.compile(r"<!-- (block|file): ([\w.-]+) -->\s*")


@dataclass(frozen=True)
class Block:
    """A block of code; ``name`` is that of the mark before it, ``kind`` the mark's (``block``, ``file``)."""

    text: str
    language: str
    kind: str | None
    name: str | None


@dataclass(frozen=True)
class Page:
    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(CHECKOUT))

    @cached_property
    def tokens(self) -> list[Token]:
        return _PARSER.parse(self.path.read_text(encoding="utf-8"))

    @property
    def headings(self) -> list[tuple[int, str]]:
        """(level, text) of each, as GitHub reads the text: without marks of emphasis or code."""
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        return [
            (int(opening.tag[1]), "".join(child.content for child in inline.children or []))
            for opening, inline in pairs
            if opening.type == "heading_open"
        ]

    @property
    def anchors(self) -> set[str]:
        """What GitHub makes of the headings; the second of two equal ones gets ``-1``, and so on."""
        seen: Counter[str] = Counter()
        found = set()
        for _, text in self.headings:
            slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
        return found

    @property
    def links(self) -> list[str]:
        """The targets of links and pictures, in order."""
        inner = [child for token in self.tokens for child in token.children or []]
        targets = [child.attrs.get("href") or child.attrs.get("src") for child in inner]
        return [str(target) for target in targets if target is not None]

    @property
    def tables(self) -> list[list[list[str]]]:
        """The cells of each row of each table, as written; the head is the first row."""
        tables: list[list[list[str]]] = []
        for token in self.tokens:
            if token.type == "table_open":
                tables.append([])
            elif token.type == "tr_open":
                tables[-1].append([])
            elif token.type == "inline" and tables and token.level > 3 and tables[-1]:
                tables[-1][-1].append(token.content)
        return tables

    @property
    def blocks(self) -> list[Block]:
        found = []
        mark = None
        for token in self.tokens:
            if token.type in ("fence", "code_block"):
                kind, name = mark.groups() if mark else (None, None)
                found.append(Block(token.content, token.info.strip(), kind, name))
            mark = _MARK.fullmatch(token.content) if token.type == "html_block" else None
        return found

    def block(self, name: str) -> str:
        (found,) = (block.text for block in self.blocks if block.name == name)
        return found


def pages() -> list[Page]:
    """The pages at the top of the checkout, that of the examples, and everything below ``docs``."""
    top = [*sorted(CHECKOUT.glob("*.md")), CHECKOUT / "examples" / "README.md"]
    return [Page(path) for path in [*top, *sorted(DOCS.rglob("*.md"))]]


def page(name: str, language: str = "en") -> Page:
    return Page(DOCS / language / f"{name}.md")
