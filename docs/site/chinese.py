"""Search for Chinese: the index holds each character and each pair of neighbours, and so does a query.

Sphinx would use jieba, a dictionary. The index then has only the words that jieba knows, so that a search for
占位符, 挂接点 or 对数概率 finds no page. Pairs find every word on every page, and need no dictionary.
"""

from __future__ import annotations

import re

from sphinx.search.zh import SearchChinese

HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]+")


class SearchPairs(SearchChinese):
    # Sphinx 9.0 names the stemmer after this, and the one in the page is that of English. With "Chinese" the
    # script ends there with a ReferenceError, and the search of the site finds nothing.
    language_name = "English"
    # A query of several characters needs all of its pairs; a single character is a query, too.
    js_splitter_code = r"""
var splitQuery = (query) =>
  (query.match(/[\u3400-\u4dbf\u4e00-\u9fff]+|[a-zA-Z0-9_]+/g) || []).flatMap((run) => {
    if (run.length === 1 || /^[a-zA-Z0-9_]/.test(run)) return [run];
    return Array.from({ length: run.length - 1 }, (_, i) => run.slice(i, i + 2));
  });
"""

    def split(self, input: str) -> list[str]:
        latin = self.latin1_letters.findall(input)
        self.latin_terms.update(latin)
        runs = HAN.findall(input)
        pairs = [run[i : i + 2] for run in runs for i in range(len(run) - 1)]
        return [*(letter for run in runs for letter in run), *pairs, *latin]

    def word_filter(self, stemmed_word: str) -> bool:
        return bool(HAN.match(stemmed_word)) or super().word_filter(stemmed_word)
