"""The built site as data: its pages, their text, and where their links lead."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.docs.pages import CHECKOUT
from tests.lab import environments

SITE = CHECKOUT / ".site"
SOURCES = CHECKOUT / "docs" / "site"
SECONDS = 300  # bound on a build
_EMPTY = {"img", "meta", "link", "input", "br", "hr", "path", "wbr", "line", "circle", "polyline", "rect"}


def build() -> Path:
    """The site of this checkout. Nothing is built if it is there already."""
    environments.ensure(["docs"])
    python = CHECKOUT / ".lab" / "docs" / "bin" / "python"
    done = subprocess.run(
        [python, SOURCES / "build.py"], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return SITE


def module(name: str) -> ModuleType:
    """A module of ``docs/site`` that needs nothing but Python."""
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", SOURCES / f"{name}.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@dataclass
class Html(HTMLParser):
    """What a test asks of a page. ``texts`` are the text nodes of the article, ``chrome`` those around it."""

    path: Path
    links: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    chrome: set[str] = field(default_factory=set)
    language: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._goes_on = False
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._goes_on = tag == "wbr"  # which stands within a word
        if tag not in _EMPTY:
            self._open.append(tag)
        if tag == "html":
            self.language = values.get("lang") or ""
        self.ids.update(value for key in ("id", "name") if (value := values.get(key)))
        for key in ("href", "src"):
            if value := values.get(key):
                self.links.append(value)
        if "article" not in self._open and (label := values.get("aria-label")):
            self.chrome.add(label)

    def handle_endtag(self, tag: str) -> None:
        self._goes_on = False
        while tag in self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self._open):
            return
        if "article" in self._open and self._goes_on:
            self.texts[-1] += data
        elif "article" in self._open:
            self.texts.append(data)
        elif data.strip():
            self.chrome.add(" ".join(data.split()))


@functools.cache
def html(path: Path) -> Html:
    return Html(path)


def names(language: str) -> list[str]:
    """The pages of a language without those that Sphinx adds, as in ``navigation.pages``."""
    folder = SITE / language
    found = [path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.html")]
    return sorted(name for name in found if name != "search")


def index(language: str) -> dict[str, Any]:
    """What the site's search looks words up in."""
    text = (SITE / language / "searchindex.js").read_text(encoding="utf-8")
    return dict(json.loads(text.removeprefix("Search.setIndex(").removesuffix(")")))
