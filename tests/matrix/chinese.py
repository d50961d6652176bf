"""``python3 -m tests.matrix.chinese``: from ``docs/en/releases.md`` to the same page in Chinese.

The English page is the only store of the results; this translates the words around them and in them. Pure;
standard library only. `tests.matrix.run` calls it whenever it writes the page. A text that has no Chinese
here is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.matrix import table

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENGLISH, CHINESE = "en/releases.md", "zh/releases.md"

HEAD = """\
# 各版本明细

本页为 PyPI 上 0.5.3 起的每个 SGLang 版本列出一行：原版与修补后有哪些是正确的，在 Python 3.11 和 CPU 上测得。
本页由 `make matrix` 生成，请勿手工修改。`make matrix RELEASE=0.5.9` 只运行一个版本，并重写它的一行。

{age}

- **transformers**：该版本固定使用的 transformers 版本，测试时用的也是它。
- **挂接点**：每项修补在该版本中用到多少个函数；它们都具备修补所需的形式，也都列在[挂接点总表](seams.md)中。
- **自带的 M-RoPE**：对于交错排列的配置，该版本自身的旋转是否与 `transformers` 一致。
  *否，已修补*：修补后一致。*YaRN 已修补*：YaRN rope 会无声地丢失 `mrope_section`，修补后保留。
  （*拒绝 YaRN*，见于较早的结果：这样的模型不启动。）这里测的是 Qwen3-VL 使用的 rope；
  使用 CUDA 的 Qwen3.5（见 [M-RoPE](mrope.md)）另行测试。
- **网格**：在文本提示词中，{grids} 张随机尺寸的 Qwen3-VL 图片里，有几张在原版中的网格与 `transformers` 不同。
  *已修补*：修补后没有不同的。
- **原版**、**修补后**：向该版本自己的处理器类发送的请求，Qwen3-VL 和 Qwen2.5-VL 各 {cases} 个，有几个正确。
  正确是指：id、图片偏移、M-RoPE 位置和填充后的 id 与 `transformers` 由调用者的 id 得到的相同；
  无法支持的请求则以 `ValueError`（HTTP 400）被拒绝。原版按其默认方式测试；
  修补后按该处理器的每一种工作方式测试（`SGLANG_MM_AVOID_RETOKENIZE` 打开与关闭，一个工作线程与一组）。
- **视频**：两种模型各 {videos} 个修补后的视频请求，有几个精确（标准同上，时间也要相同），
  有几个因该版本无法确定各帧的时间而被拒绝。
- **服务器**：启动过修补后的极小 Qwen3-VL 服务器，
  三个请求的对数概率与 `transformers` 在调用者的 id 上算得的一致；-：没有试过。
- **代码**：产生该行结果的本包代码（不含命令行）的摘要。

"""
COLUMNS = (
    *("SGLang", "transformers", "处理器类", "挂接点", "自带的 M-RoPE", "网格"),
    *("原版", "修补后", "视频", "服务器", "代码"),
)
STOCK_HEAD = """\
## 原版能正确处理的请求

每种情况，以及原版 SGLang 自身就能正确处理它的版本。

| 情况 | Qwen3-VL | Qwen2.5-VL |
|---|---|---|
"""
AGES = {
    table.CURRENT: "所有结果都由当前的本包代码测得。",
    table.ALL_OLDER: "**较早的结果。** 下面的结果测得之后，本包又有改动；`make matrix` 会重新测量。",
    table.SOME_OLDER: (
        "**较早的结果。** 下面 {all} 行中有 {count} 行（{which}）测得之后，本包又有改动；"
        "`make matrix` 会重新测量。"
    ),
}
CASES = {
    "text": "文本",
    "short": "每图一个占位符",
    "short, drifted": "每图一个占位符，id 漂移",
    "expanded": "已展开",
    "expanded, drifted before": "已展开，图片之前漂移",
    "expanded, drifted between": "已展开，图片之间漂移",
    "expanded, drifted after": "已展开，图片之后漂移",
    "history expanded, new turn short": "历史已展开，新的一轮每图一个占位符",
    "expanded, odd size": "已展开，尺寸特殊",
    "preprocessed, drifted": "预处理条目，id 漂移",
    "a placeholder missing": "少一个占位符",
    "a stray placeholder": "多余的占位符",
    "an image missing": "少一张图片",
}
PIECES = {
    "yes": "是",
    "no": "否",
    "repaired": "已修补",
    "NO": "否，未修补好",
    "YaRN refused": "拒绝 YaRN",
    "YaRN repaired": "YaRN 已修补",
    "YaRN LOST": "YaRN 丢失",
    "right": "正确",
    "{n} differ": "{n} 张不同",
    "{n} STILL": "仍有 {n} 张",
    "{n} WRONG": "{n} 个错误",
    "{n} of {all}": "{n}/{all}",
    "{n} exact": "{n} 个精确",
    "{n} refused": "{n} 个拒绝",
    "failed": "失败",
    "all": "全部",
    "none": "无",
}
# A number, a release, a range of releases, code, nothing.
_NAME = re.compile(r"-|`[^`]+`|\d[\w.]*( - \d[\w.]*)?")
_COUNT = re.compile(r"(processor|video|sampling|mrope|deepstack) (\d+)")  # the functions of a repair


def page(text: str) -> str:
    """The Chinese page, from the English one."""
    lines = text.splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if line.startswith(f"| {table.COLUMNS[0]} |"))
    stock_head = table.STOCK_HEAD.splitlines(keepends=True)
    second = lines.index(stock_head[0])
    stock = lines[second + len(stock_head) :]
    if lines[second : second + len(stock_head)] != stock_head:
        raise ValueError(f"the head of the second table is not {table.STOCK_HEAD!r}")
    parts = [
        _head("".join(lines[:first])),
        _row(COLUMNS),
        lines[first + 1],
        *(_row([_cell(cell) for cell in cells]) for cells in table.releases(text)),
        "\n",
        STOCK_HEAD,
    ]
    for line in stock:
        name, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
        if name not in CASES:
            raise _missing("CASES", name)
        parts.append(_row([CASES[name], *map(_cell, cells)]))
    return "".join(parts)


def _head(head: str) -> str:
    found = _read(table.HEAD, head)
    if found is None:
        raise ValueError("the head of the English page is not HEAD of tests/matrix/table.py: edit both")
    return HEAD.format_map(found | {"age": _age(found["age"])})


def _age(english: str) -> str:
    for template, chinese in AGES.items():
        if (found := _read(template, english)) is not None:
            which = {name: _cell(text) for name, text in found.items()}
            return chinese.format_map(which)
    raise _missing("AGES", english)


def _cell(cell: str) -> str:
    """Of a cell such as `Qwen3-VL: 2 exact, 2 refused; Qwen2.5-VL: 4 refused`."""
    parts = []
    for part in cell.split("; "):
        label, colon, rest = part.rpartition(": ")
        pieces = [_piece(piece) for piece in rest.split(", ")]
        parts.append(label + ("：" if colon else "") + "，".join(pieces))
    return "；".join(parts)


def _piece(piece: str) -> str:
    if _NAME.fullmatch(piece):
        return piece
    if count := _COUNT.fullmatch(piece):
        return f"`{count[1]}` {count[2]}"
    for template, chinese in PIECES.items():
        if (found := _read(template, piece)) is not None:
            return chinese.format_map(found)
    raise _missing("PIECES", piece)


def _missing(table_of_texts: str, english: str) -> KeyError:
    return KeyError(f"tests/matrix/chinese.py: {table_of_texts} has no Chinese for {english!r}")


def _read(template: str, text: str) -> dict[str, str] | None:
    """The values that ``template.format`` put into the text, if it made the text."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+)", re.escape(template))
    found = re.fullmatch(pattern, text)
    return found.groupdict() if found else None


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def write(docs: Path = DOCS) -> None:
    text = (docs / ENGLISH).read_text(encoding="utf-8")
    (docs / CHINESE).write_text(page(text), encoding="utf-8")


if __name__ == "__main__":
    write()
