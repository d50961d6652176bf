"""The words that furo puts around a page, in Chinese. Furo itself has no translations."""

from __future__ import annotations

import re
from pathlib import Path

CHINESE = {
    "Auto light/dark, in dark mode": "跟随系统（当前深色）",
    "Auto light/dark, in light mode": "跟随系统（当前浅色）",
    "Back to top": "回到顶部",
    "Contents": "目录",
    "Dark mode": "深色模式",
    "Expand": "展开",
    "Light mode": "浅色模式",
    "Made with": "主题：",
    "Menu": "菜单",
    "Next": "下一页",
    "On this page": "本页内容",
    "Previous": "上一页",
    "Home": "首页",
    "Skip to content": "跳到正文",
    "Toggle Light / Dark / Auto color theme": "切换浅色、深色或跟随系统",
    "Toggle site navigation sidebar": "展开或收起站点导航",
    "Toggle table of contents sidebar": "展开或收起本页目录",
}
_ARTICLE = re.compile(r"(?s)(<article.*?</article>)")
# The text of an element, and what a screen reader says of a button.
_WORDS = re.compile(r'(>\s*|aria-label=")([A-Z][^<>"]*?)(?=\s*<|")')
_CODE = re.compile(r"(?s)(<pre.*?</pre>)")
_BREAK = re.compile(
    r"(?<=[\u3001-\u303f\uff01-\uff65])\n|(?<=[\u4e00-\u9fff])\n(?=[\u3001-\u9fff\uff01-\uff65])"
)


def translate(folder: Path) -> None:
    """In all pages of the site in this folder. The project's own words stay."""
    for path in folder.rglob("*.html"):
        parts = _ARTICLE.split(path.read_text(encoding="utf-8"))
        parts[::2] = [_WORDS.sub(_chinese, part) for part in parts[::2]]
        parts[1::2] = [_without_breaks(part) for part in parts[1::2]]
        path.write_text("".join(parts), encoding="utf-8")


def _without_breaks(article: str) -> str:
    """Chinese has no blanks between words, and a browser shows the end of a line as one. Code stays."""
    parts = _CODE.split(article)
    parts[::2] = [_BREAK.sub("", part) for part in parts[::2]]
    return "".join(parts)


def _chinese(found: re.Match[str]) -> str:
    return found[1] + CHINESE.get(" ".join(found[2].split()), found[2])
