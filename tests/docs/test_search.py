"""The site's search finds a word on every page that holds it, and on no other page. In both languages."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs import pages, site
from tests.docs.pages import LANGUAGES

# Two characters and more; the last ones are in no dictionary of Chinese.
CHINESE = [
    "损失",
    "镜像",
    "日志",
    "安装",
    "图片",
    "服务器",
    "训练器",
    "占位符",
    "挂接点",
    "占位段",
    "对数概率",
    "最终校验",
]
WORDS = {
    "en": ["rollout", "Docker", "checkpoint", "crop", "grid", "uninstall", "DEEPEYES_PATCH", "IndexError"],
    "zh": [*CHINESE, "图", "rollout", "Docker", "DEEPEYES_PATCH", "IndexError"],
}
NODE = shutil.which("node")

# Runs the site's own files, in the order of its search page, without a browser.
BROWSER = """
const vm = require("vm"), fs = require("fs");
const [folder, words] = [process.argv[2], JSON.parse(process.argv[3])];
const element = { addEventListener() {}, dataset: {} };
const document = { ...element, getElementById: () => null, documentElement: element };
const storage = { setItem() {}, getItem: () => null, removeItem() {} };
const context = vm.createContext({ document, localStorage: storage, console, URLSearchParams,
  _: (text) => text, _ready() {} });
context.window = context;
for (const name of ["_static/documentation_options.js", "_static/language_data.js", "_static/searchtools.js"])
  vm.runInContext(fs.readFileSync(`${folder}/${name}`, "utf-8"), context);
vm.runInContext("var SPHINX_HIGHLIGHT_ENABLED = false;", context);
vm.runInContext(fs.readFileSync(`${folder}/searchindex.js`, "utf-8"), context);
context.words = words;
vm.runInContext("var search = (word) => Search._performSearch(...Search._parseQuery(word))", context);
vm.runInContext("var found = words.map((word) => search(word).map((result) => result[0]))", context);
console.log(JSON.stringify(context.found));
"""


@pytest.fixture(scope="module", autouse=True)
def built() -> Path:
    return site.build()


def holding(language: str, word: str, end: str = "") -> set[str]:
    """The pages whose text holds the word; an English one also in another form (crop, crops, cropped)."""
    pattern = re.escape(word) if not word.isascii() else rf"(?<![A-Za-z0-9_]){re.escape(word)}{end}"
    folder = site.SITE / language
    return {
        name
        for name in site.names(language)
        if any(re.search(pattern, text, re.IGNORECASE) for text in site.html(folder / f"{name}.html").texts)
    }


def whole(language: str, word: str) -> set[str]:
    """The pages that hold the word in this very form."""
    return holding(language, word, r"(?![A-Za-z0-9_])")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_index_holds_each_word_of_each_page(language: str) -> None:
    index = site.index(language)

    def pages_of(term: str) -> set[str]:
        numbers = [index[part].get(term, []) for part in ("terms", "titleterms")]
        return {
            index["docnames"][n] for found in numbers for n in (found if isinstance(found, list) else [found])
        }

    for word in WORDS[language] if language == "en" else CHINESE:
        parts = [word.lower()] if word.isascii() else [word[i : i + 2] for i in range(len(word) - 1)]
        found = set.intersection(*map(pages_of, parts))
        if found or not word.isascii():  # of some English words, the index has the stem alone
            assert whole(language, word) <= found, word


@pytest.mark.skipif(NODE is None, reason="no node on PATH, which runs the site's own search")
@pytest.mark.parametrize("language", LANGUAGES)
def test_search_finds_the_pages_that_a_reader_would_find(language: str) -> None:
    assert NODE
    script = ["-e", BROWSER, "-", str(site.SITE / language), json.dumps(WORDS[language])]
    done = subprocess.run([NODE, *script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for word, found in zip(WORDS[language], json.loads(done.stdout), strict=True):
        assert whole(language, word), f"no page holds {word}"
        assert whole(language, word) <= set(found) <= holding(language, word), word


def test_the_glossary_is_found_by_its_terms() -> None:
    """Every Chinese term, as the index has it in pairs."""
    index = site.index("zh")
    here = index["docnames"].index("glossary")
    for row in pages.page("glossary", "zh").tables[0][1:]:
        for run in re.findall(r"[一-鿿]{2,}", row[1]):
            for pair in (run[i : i + 2] for i in range(len(run) - 1)):
                found = index["terms"][pair]
                assert here in (found if isinstance(found, list) else [found]), pair
