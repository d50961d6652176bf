"""Sphinx: ``make docs`` builds the site of both languages from ``docs`` into ``.site``, offline.

The pages are Markdown as GitHub shows it; what Sphinx needs beside it is here and in ``docs/index.md``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

project = "deepeyes-patch"
author = "the deepeyes-patch authors"
language = "en"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["site"]
# GitHub's own anchors, which the links use.
myst_heading_anchors = 4
# GitHub draws such a block. The site shows its text: a library that draws would need the network or npm.
lexers["mermaid"] = TextLexer()

html_theme = "furo"
html_title = "deepeyes-patch"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "languages.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

# In the navigation, a page with an asterisk is one that may not have been written yet.
OPTIONAL = re.compile(r"(?m)^(\S+)\*\n")

LANGUAGES = {"en": ("en", "English"), "zh": ("zh-CN", "中文")}


def _only_what_is_there(app: Any, docname: str, content: list[str]) -> None:
    def entry(found: re.Match[str]) -> str:
        return f"{found[1]}\n" if (Path(app.srcdir) / f"{found[1]}.md").exists() else ""

    if docname == "index":
        content[0] = OPTIONAL.sub(entry, content[0])


def _language_of_page(
    app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Say the page's own language, and where the same page is in the other."""
    folder, _, page = pagename.partition("/")
    context["language"] = LANGUAGES.get(folder, LANGUAGES["en"])[0]
    twins = {name: f"{name}/{page if folder in LANGUAGES else 'index'}" for name in LANGUAGES}
    context["page_languages"] = [
        (title, twins[name], name == folder)
        for name, (_, title) in LANGUAGES.items()
        if (Path(app.srcdir) / f"{twins[name]}.md").exists()
    ]


def setup(app: Any) -> None:
    app.connect("source-read", _only_what_is_there)
    app.connect("html-page-context", _language_of_page)
