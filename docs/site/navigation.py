"""The order of the pages, for both languages. A reader starts at a symptom, and ends as a contributor."""

from __future__ import annotations

LANGUAGES = {"en": "English", "zh": "中文"}

SECTIONS: tuple[tuple[dict[str, str], tuple[str, ...]], ...] = (
    (
        {"en": "Start", "zh": "开始"},
        (
            *("symptoms", "quickstart", "trainers", "switches", "served", "never_run", "recipes"),
            "cli",
        ),
    ),
    (
        {"en": "Operate", "zh": "运维"},
        ("troubleshooting", "compatibility", "releases", "upgrading", "security"),
    ),
    (
        {"en": "Understand", "zh": "理解"},
        (
            *("how_it_works", "design", "seams", "mrope"),
            *("smoke", "performance", "load", "peers"),
        ),
    ),
    ({"en": "Project", "zh": "项目"}, ("faq", "glossary", "contributing", "upstream", "releasing")),
)


def pages() -> tuple[str, ...]:
    """The names of all pages but the first, in order."""
    return tuple(page for _, names in SECTIONS for page in names)


def toctrees(language: str) -> str:
    """What the first page of a site ends with."""
    blocks = []
    for captions, names in SECTIONS:
        lines = ["```{toctree}", ":hidden:", f":caption: {captions[language]}", *names, "```"]
        blocks.append("\n".join(lines))
    return "\n\n" + "\n\n".join(blocks) + "\n"
