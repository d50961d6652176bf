"""The page where both sites begin: the first screen of the README, in both languages."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from navigation import LANGUAGES

HTML_LANGUAGES = {"en": "en", "zh": "zh-CN"}

PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>deepeyes-patch</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 52rem; margin: 0 auto; padding: 1rem; }}
a {{ color: light-dark(#0a4bff, #8ab4ff); }}
nav a {{ display: inline-block; margin: 0 1rem 1rem 0; padding: .5rem 1.5rem; border: 1px solid; }}
nav a {{ border-radius: .25rem; font-weight: bold; text-decoration: none; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
td, th {{ border-bottom: 1px solid #8888; padding: .35rem .75rem .35rem 0; }}
td, th {{ text-align: left; vertical-align: top; }}
p code {{ overflow-wrap: anywhere; }}
pre {{ overflow-x: auto; padding: .75rem; background: #8882; }}
img {{ max-width: 100%; }}
section + section {{ border-top: 1px solid #8888; margin-top: 2rem; }}
</style>
<h1>deepeyes-patch</h1>
<nav>{choice}</nav>
{sections}
</html>
"""

_TARGET = re.compile(r'(?P<attribute>href|src)="docs/(?P<path>[^"#]+)')


def landing(readmes: dict[str, str]) -> str:
    """The page, from the README of each language."""
    choice = "".join(
        f'<a href="{name}/index.html" lang="{HTML_LANGUAGES[name]}">{title}</a>'
        for name, title in LANGUAGES.items()
    )
    sections = "\n".join(
        f'<section lang="{HTML_LANGUAGES[name]}">\n{_html(first_screen(readmes[name]))}</section>'
        for name in LANGUAGES
    )
    return PAGE.format(choice=choice, sections=sections)


def first_screen(readme: str) -> str:
    """What stands between the line with the languages and the first heading below it."""
    head, _, _ = readme.partition("\n## ")
    _, _, text = head.partition("\n\n")[2].partition("\n\n")
    return text


def _html(text: str) -> str:
    html = MarkdownIt("commonmark").enable("table").render(text)
    html = html.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    return _TARGET.sub(lambda found: f'{found["attribute"]}="{_address(found["path"])}', html)


def _address(path: str) -> str:
    """Of a page or a picture of ``docs``, as seen from the top of the site."""
    return f"{path.removesuffix('.md')}.html" if path.endswith(".md") else path
