"""M-RoPE positions by definition, for text, images and videos (Qwen2-VL paper, section 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray


class Medium(NamedTuple):
    """A run of placeholders from ``first`` to ``last``, both inclusive.

    Its tokens are a grid of ``rows`` x ``columns`` patches for each entry of ``times``: int64 positions on
    the t axis, ascending, counted from where the run starts.
    """

    first: int
    last: int
    times: NDArray[numpy.int64]
    rows: int
    columns: int


def times(groups: int, seconds: float, tokens_per_second: float) -> NDArray[numpy.int64]:
    """Positions on the t axis, int64 [groups], of groups of frames that are ``seconds`` apart."""
    # In float32, as transformers and SGLang compute them: with other rounding, a step could differ by one.
    steps = numpy.arange(groups, dtype=numpy.float32) * numpy.float32(seconds)
    return (steps * numpy.float32(tokens_per_second)).astype(numpy.int64)


def positions(length: int, media: Sequence[Medium], spatial_merge_size: int) -> NDArray[numpy.int64]:
    """Positions int64 [3, length], in the order t, h, w.

    Text counts up on all three axes. An image or video starts where the text before it ends, and spans its
    merged grid. The tokens after it start one past the largest position so far.

    Parameters
    ----------
    length:
        How many tokens there are.
    media:
        All images, videos and groups of frames, in the order of the tokens.
    spatial_merge_size:
        Patches per side that become one token.
    """
    result = numpy.empty((3, length), numpy.int64)
    count = numpy.arange(length)  # text, rows and columns count up
    token = start = 0
    for first, last, t, rows, columns in media:
        text = first - token
        numpy.add(count[:text], start, out=result[:, token:first])
        start += text
        h, w = rows // spatial_merge_size, columns // spatial_merge_size
        t_axis, h_axis, w_axis = result[:, first : last + 1].reshape(3, len(t), h, w)  # a view
        numpy.add(t[:, None, None], start, out=t_axis)
        numpy.add(count[:h, None], start, out=h_axis)
        numpy.add(count[:w], start, out=w_axis)
        start += max(int(t[-1]), h - 1, w - 1) + 1
        token = last + 1
    numpy.add(count[: length - token], start, out=result[:, token:])
    return result


def position_delta(found: NDArray[numpy.int64]) -> int:
    """How far the next token's position is beyond its index, for positions [3, length] of `positions`."""
    # No axis of any token is beyond those of the last token.
    t, h, w = found[:, -1].tolist()
    return int(max(t, h, w) + 1 - found.shape[1])
