"""Sphinx: one language of the site. ``build.py`` gives the language, and the folder of its pages.

The pages are Markdown as GitHub shows it; what Sphinx needs beside it is in this folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chinese import SearchPairs
from navigation import LANGUAGES

project = "deepeyes-patch"
author = "the deepeyes-patch authors"

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
# GitHub's own anchors, which the links use.
myst_heading_anchors = 4
# A diagram is nothing to paste.
copybutton_selector = "div:not(.highlight-mermaid) > div.highlight > pre"
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
html_use_index = False


def _other_language(
    app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """The same page in each language. The sites lie side by side, and have the same pages."""
    top = "../" * (pagename.count("/") + 1)
    context["page_languages"] = [
        (title, f"{top}{name}/{pagename}.html", app.config.language.startswith(name))
        for name, title in LANGUAGES.items()
    ]


def setup(app: Any) -> None:
    app.add_search_language(SearchPairs)
    app.connect("html-page-context", _other_language)
