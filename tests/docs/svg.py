"""What the pictures of measured errors share: colours, the head of a file, a line of text."""

from __future__ import annotations

from xml.sax.saxutils import escape

LOST = 0.005  # a sample with such an error is lost, as the page says
WRONG, EXACT, INK, GRID = "#cf222e", "#1a7f37", "#24292f", "#d0d7de"


def head(width: int, height: int, title: str) -> list[str]:
    """The first lines of a picture, with a background of its own."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="14">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]


def text(
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    colour: str = INK,
    weight: str = "normal",
    size: int = 14,
) -> str:
    font = f' font-size="{size}"' if size != 14 else ""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"{font}>'
        f"{escape(words)}</text>"
    )
