"""What is due to a pre-tokenized request, from the definition of a span; shares no code with the package.

An image stands in the ids as ``vision_start``, placeholders, ``vision_end``: as many placeholders as its grid
has merged patches, or, for a raw image, a single one. The model must see the caller's ids with each single
one made as many; a request that cannot be read so is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Words:
    """The ids with a meaning, how many rows the embedding has, and patches per side that become one token."""

    start: int
    image: int
    end: int
    video: int
    vocabulary: int
    merge: int


@dataclass(frozen=True)
class Due:
    """Served on ``ids``, or refused: the message must match one of ``problems``, or one of ``media``.

    ``media`` are problems of the images themselves, ``problems`` those of the ids beside them.
    """

    ids: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    media: list[str] = field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        return bool(self.problems or self.media)


def count(grid: Grid, words: Words) -> int:
    t, h, w = grid
    return t * (h // words.merge) * (w // words.merge)


def misfit(sizes: Sequence[Any], words: Words) -> str | None:
    """What is wrong with a caller's (t, h, w), as a regular expression for the message; ``None``: nothing.

    Sizes are patches: whole, positive and finite. A side is a multiple of the merge size, because that many
    patches a side become one token.
    """
    for size in sizes:
        real = isinstance(size, (int, float)) and math.isfinite(size)
        if not real or size != math.floor(size) or size < 1:
            return r"image_grid_thw must be \(t, h, w\)"
        if size >= 2**63:  # as a float, such a size is a number like any other
            return r"image_grid_thw must be \(t, h, w\)|h and w must be multiples|demands \d+ rows"
    t, h, w = map(int, sizes)
    if h % words.merge or w % words.merge:
        return rf"grid_thw of {t}x{h}x{w}: h and w must be multiples of spatial_merge_size {words.merge}"
    return None


def due(
    ids: Sequence[Any], grids: Sequence[Grid | None], words: Words, *, expanded_only: bool = False
) -> Due:
    """What a request with these images must come to.

    Parameters
    ----------
    ids:
        The caller's; what is no int in the vocabulary is a problem.
    grids:
        (t, h, w) in patches of each image, in order; ``None`` for one that cannot be read, which is a problem
        that the caller names.
    expanded_only:
        The images came preprocessed: a single placeholder is not short for many.
    """
    problems = _no_ids(ids, words)
    if problems:
        return Due(problems=problems)
    # One character for each id, so that positions in the text are positions in the ids.
    letters = {words.start: "(", words.image: "P", words.end: ")", words.video: "V"}
    text = "".join(letters.get(token, ".") for token in ids)
    problems += [rf"video placeholder .*position {at}\b" for at, kind in enumerate(text) if kind == "V"]
    owned = {at for span in re.finditer(r"\(P+\)", text) for at in range(*span.span())}
    for run in re.finditer("P+", text):
        if run.start() not in owned:
            first, last = run.start(), run.end() - 1
            problems.append(
                rf"position {first}\b"
                if first == last
                else rf"{last - first + 1} image .*{first} to {last}\b"
            )
    spans = [(run.start(), run.end()) for run in re.finditer(r"(?<=\()P+(?=\))", text)]
    if len(spans) != len(grids):
        problems.append(rf"{len(spans)} image span\(s\).* {len(grids)} image\(s\)")
    else:
        for index, ((start, stop), grid) in enumerate(zip(spans, grids, strict=True)):
            if grid is None:
                continue
            made = count(grid, words)
            if stop - start != made and (stop - start != 1 or expanded_only):
                problems.append(
                    rf"image {index} of {len(grids)}: input_ids hold {stop - start} image .*"
                    rf"position {start} on.* makes {made} .*grid_thw {'x'.join(map(str, grid))}\b"
                )
    if problems:
        return Due(problems=problems)
    seen = list(ids)
    # From the last on, so that positions hold.
    for (start, stop), grid in reversed(list(zip(spans, grids, strict=True))):
        seen[start:stop] = [words.image] * (0 if grid is None else count(grid, words))
    return Due(ids=seen)


def _no_ids(ids: Sequence[Any], words: Words) -> list[str]:
    if any(not isinstance(token, int) or abs(token) >= 2**63 for token in ids):
        return ["flat sequence of token ids"]
    return [
        rf"{token} at position {at}\b.* 0 to {words.vocabulary - 1}\b"
        for at, token in enumerate(ids)
        if not 0 <= token < words.vocabulary
    ]
