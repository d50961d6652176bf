"""Random pre-tokenized requests: ids, images and grids, near enough to good ones to get past the first check.

Everything drawn is plain data, so that a failing request prints as what it takes to make it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.oracle import Words

# Each twice where the grids of both have the same number of tokens in another shape. Some are resized, one
# is smaller than a patch, one larger than most; Qwen3-VL makes at least 64 tokens of an image, the other 4.
SIZES = (
    *((256, 256), (448, 224), (224, 448), (128, 512), (300, 200), (201, 299), (56, 56), (28, 84)),
    *((333, 71), (640, 480), (20, 20)),
)
# 0.5.3 to 0.5.5.post1 resize images by themselves first, and Qwen2.5-VL gets another grid of this one than
# `transformers` makes.
NARROW_SIZE = (7, 1200)
# HF refuses a picture whose sides differ by more than a factor of 200.
UNUSABLE_SIZE = (3, 700)

FORMS = ("picture", "png", "data URL")
BROKEN = {
    "random bytes": bytes(range(256)),
    "half a PNG": b"",  # made of the image itself
    "no bytes": b"",
    "words": "these are words, and no image",
    "None": None,
    "a number": 17,
    "a list": [1, 2],
}
# What is no id at all.
ODD = (2**63, 1.5, None, "5", [5])
# How the grid of a preprocessed item may be spelled.
SPELLINGS = ("list", "int64", "int32", "float64", "float32", "float16", "bool", "complex64", "numpy")
# Sizes in a grid that no image has. The integers beside them are drawn: even and odd ones, from -3 on.
NO_SIZES = (0, -1, 1.5, float("inf"), float("-inf"), float("nan"), 1e30, 2**40, 2**62, 2**63, 10**30)
# Rows of features that are really made; a grid that demands more gets fewer.
MOST_ROWS = 2048


@dataclass(frozen=True)
class Drawn:
    """One request.

    ``sizes`` (width, height) of each picture, ``forms`` in which it is sent: of `FORMS` or `BROKEN`.
    ``preprocessed`` is the format of the items (SGLang's), or ``None`` for raw images. ``together`` says that
    one item holds all images, ``grids`` what becomes of their grids: kept, ``turned`` (h and w exchanged,
    which is another legal grid of the same rows), ``short``, ``missing``, ``bad`` or ``drawn``: then they are
    ``rows``, one for each picture, in one of `SPELLINGS`, and the features are as many as they demand.
    """

    ids: list[Any]
    sizes: list[tuple[int, int]]
    forms: list[str] = field(default_factory=list)
    preprocessed: str | None = None
    together: bool = True
    grids: str = "kept"
    rows: list[tuple[Any, Any, Any]] = field(default_factory=list)
    spelling: str = "list"

    def __repr__(self) -> str:
        """As source that makes it, runs of placeholders in short."""
        runs = [(token, len(list(same))) for token, same in groupby(self.ids)]
        ids = " + ".join(f"[{token!r}]" if n == 1 else f"[{token!r}] * {n}" for token, n in runs) or "[]"
        others = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[1:])
        return f"Drawn({ids}, {others})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How hypothesis prints it."""
        printer.text(repr(self))


@st.composite
def texts(draw: st.DrawFn, words: Words, spelled: list[int], longest: int = 12) -> list[int]:
    """Legal text: ordinary ids, lone markers, and ids that spell a placeholder in ordinary tokens."""
    piece = st.one_of(
        st.lists(st.integers(0, words.start - 1), max_size=longest),
        st.sampled_from([[], spelled, [words.end], [0] * 5]),
    )
    pieces = draw(st.lists(piece, max_size=3))
    return [token for one in pieces for token in one]


@st.composite
def requests(
    draw: st.DrawFn,
    words: Words,
    tokens_of: dict[tuple[int, int], int],
    spelled: list[int],
    formats: tuple[str, ...],
) -> Drawn:
    """Any request; about a third of them are to be served.

    Parameters
    ----------
    tokens_of:
        How many tokens the model makes of a picture of each size.
    spelled:
        Ordinary ids that decode to an image's placeholder and its markers.
    formats:
        Of preprocessed items, as this release knows them.
    """
    sizes = draw(st.lists(st.sampled_from(list(tokens_of)), min_size=1, max_size=4))
    preprocessed = draw(st.sampled_from([None, None, None, *formats]))
    rows = [draw(_grids(words)) for _ in sizes] if preprocessed and draw(st.booleans()) else []
    right = [_tokens(row, words) for row in rows] or [tokens_of[size] for size in sizes]
    lengths = [draw(_lengths(count, tokens_of, preprocessed)) for count in right]
    ids = draw(texts(words, spelled))
    for length in lengths:
        ids += [words.start, *[words.image] * length, words.end, *draw(texts(words, spelled))]
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 2))):
            ids = draw(edits(ids, words, ODD))
    ids = draw(st.sampled_from([ids, [*ids, words.start]]))
    drawn = Drawn(ids, sizes, ["picture"] * len(sizes), preprocessed=preprocessed)
    if rows:
        together, spelling = draw(st.booleans()), draw(st.sampled_from(SPELLINGS))
        return replace(drawn, together=together, grids="drawn", rows=rows, spelling=spelling)
    if preprocessed:
        return replace(
            drawn,
            together=draw(st.booleans()),
            grids=draw(st.sampled_from(["kept", "kept", "kept", "turned", "short", "missing", "bad"])),
        )
    good = st.sampled_from(FORMS)
    form = draw(st.sampled_from([good, good, good, good, st.sampled_from([*FORMS, *BROKEN])]))
    drawn = replace(drawn, forms=[draw(form) for _ in sizes])
    if draw(st.integers(0, 9)) == 9:  # images that came, or did not, without the ids' knowledge
        other = draw(st.sampled_from(["one more", "one less", "the other way round", "unusable"]))
        change = {
            "one more": ([*sizes, sizes[0]], [*drawn.forms, "picture"]),
            "one less": (sizes[:-1] or sizes * 2, drawn.forms[:-1] or drawn.forms * 2),
            "the other way round": (sizes[::-1], drawn.forms),
            "unusable": ([UNUSABLE_SIZE, *sizes[1:]], drawn.forms),
        }
        drawn = replace(drawn, sizes=change[other][0], forms=change[other][1])
    return drawn


def _grids(words: Words) -> st.SearchStrategy[tuple[Any, Any, Any]]:
    """(t, h, w) of a preprocessed image: legal, a little off, or nonsense."""
    legal = st.integers(1, 12).map(lambda side: side * words.merge)
    side = st.integers(-3, 20)
    nonsense = st.one_of(side, st.sampled_from(NO_SIZES))
    return st.one_of(
        st.tuples(st.just(1), legal, legal),
        st.tuples(st.just(1), legal, legal),
        st.tuples(st.just(1), side, side),
        st.tuples(nonsense, nonsense, nonsense),
    )


def _tokens(row: tuple[Any, Any, Any], words: Words) -> int:
    """How many placeholders a caller sends for a grid: whatever the product comes to."""
    product = math.prod(row)
    return int(product) // words.merge**2 if 0 < product <= MOST_ROWS else 1


def _lengths(
    right: int, tokens_of: dict[tuple[int, int], int], preprocessed: str | None
) -> st.SearchStrategy[int]:
    """How long a span is drawn, mostly as it should be."""
    right = max(1, right)
    short = [right] * 3 if preprocessed else [1] * 3
    near = [max(1, right - 1), right + 1, 2 * right]
    return st.sampled_from([*[right] * 9, *short, *near, *sorted(set(tokens_of.values()))[:2]])


@st.composite
def edits(draw: st.DrawFn, ids: list[Any], words: Words, odd: tuple[Any, ...] = ()) -> list[Any]:
    """One change at a place where it can matter: beside a marker, or anywhere.

    ``odd``: what may be put among the ids beside ints of any size.
    """
    marked = [i for i, token in enumerate(ids) if token in (words.start, words.end)]
    near = st.sampled_from(marked or [0]).flatmap(lambda i: st.integers(max(0, i - 1), i + 1))
    at = min(draw(st.one_of(near, st.integers(0, max(0, len(ids) - 1)))), len(ids))
    special = [words.start, words.image, words.end, words.image, 5]
    token = draw(
        st.one_of(
            st.sampled_from(special),
            st.sampled_from([words.video, -1, words.vocabulary - 1, words.vocabulary, 10**7, *odd]),
        )
        if draw(st.integers(0, 4)) == 4
        else st.sampled_from(special)
    )
    how = draw(st.sampled_from(["insert", "insert", "delete", "replace", "exchange", "cut", "twice"]))
    ids = list(ids)
    if how == "insert":
        ids.insert(at, token)
    elif how == "delete":
        del ids[at : at + draw(st.integers(1, 3))]
    elif how == "replace" and at < len(ids):
        ids[at] = token
    elif how == "exchange" and at + 1 < len(ids):
        ids[at], ids[at + 1] = ids[at + 1], ids[at]
    elif how == "cut":
        del ids[at:]
    elif how == "twice":
        ids[at:at] = ids[at : at + draw(st.integers(1, 200))]
    return ids
