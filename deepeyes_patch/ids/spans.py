"""Pure functions on token ids: where the placeholders are, and how many there should be.

A *span* is a run of a placeholder (``<|image_pad|>``, ``<|video_pad|>``) directly between
``vision_start`` and ``vision_end``. Nothing here decodes ids. Every function is linear in the number of
ids and leaves its inner loops to NumPy and to ``list``'s own C code: prompts reach a quarter of a million
tokens. Functions that look for tokens take a list or an integer array; passing an array saves a conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy
from numpy.typing import NDArray

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.tokens import VisionTokens

IdArray: TypeAlias = NDArray[numpy.integer[Any]]
Ids: TypeAlias = Sequence[int] | IdArray
GridTHW: TypeAlias = tuple[int, int, int]  # patches of an image or video: t, h, w


class Span(NamedTuple):
    """``length`` placeholders from position ``start`` on."""

    start: int
    length: int


def find_spans(ids: Ids, tokens: VisionTokens) -> list[Span]:
    """Return the image spans of ``ids``, in order.

    Raises
    ------
    RefusedRequest
        A placeholder stands outside a span (no ``vision_start`` directly before its run, or no
        ``vision_end`` directly after it), or a placeholder of another modality occurs. The message
        names the position.
    """
    values = numpy.asarray(ids)
    for modality, token in tokens.foreign.items():
        if len(where := (values == token).nonzero()[0]):
            raise RefusedRequest(
                "placeholders",
                f"input_ids hold {_run(token, modality, int(where[0]), 1)}, and no {modality} came with them",
            )
    return _spans(values, tokens.image, "image", _vision(tokens))


def find_video_spans(ids: Ids, tokens: VisionTokens) -> list[Span]:
    """Return the spans of the video placeholder, in order; ``[]`` if the request has no videos.

    Raises
    ------
    RefusedRequest
        A placeholder stands outside a span; the message names the position.
    """
    if tokens.video is None:
        return []
    return _spans(numpy.asarray(ids), tokens.video, "video", _vision(tokens))


def find_audio_spans(ids: Ids, tokens: VisionTokens) -> list[Span]:
    """Return the spans of the audio placeholder, in order; ``[]`` if the request has no audio.

    Raises
    ------
    RefusedRequest
        A placeholder does not stand between ``audio_start`` and ``audio_end``; the message names its place.
    """
    if tokens.audio is None:
        return []
    around = {"audio_start": tokens.audio_start, "audio_end": tokens.audio_end}
    return _spans(numpy.asarray(ids), tokens.audio, "audio", around)


def _vision(tokens: VisionTokens) -> dict[str, int | None]:
    return {"vision_start": tokens.vision_start, "vision_end": tokens.vision_end}


def _spans(values: IdArray, placeholder: int, modality: str, around: dict[str, int | None]) -> list[Span]:
    """``around``: the names and ids of the tokens that stand directly before and directly after a span."""
    (before, before_id), (after, after_id) = around.items()
    found = find_runs(values, placeholder)
    for start, length in found:
        end = start + length
        if start == 0 or values[start - 1] != before_id:
            raise RefusedRequest(
                "placeholders",
                f"input_ids hold {_run(placeholder, modality, start, length)} without {before} (token "
                f"{before_id}) directly before it, so it belongs to no {modality}",
            )
        if end == len(values) or values[end] != after_id:
            raise RefusedRequest(
                "placeholders",
                f"input_ids hold {_run(placeholder, modality, start, length)} without {after} (token "
                f"{after_id}) directly after it, so it belongs to no {modality}",
            )
    return found


def find_runs(ids: Ids, token: int) -> list[Span]:
    """Return the runs of ``token``, in order, with any ids around them."""
    values = numpy.asarray(ids)
    found = numpy.zeros(len(values) + 2, numpy.bool_)  # one more at either end, where no token is
    numpy.equal(values, token, out=found[1:-1])
    edges = (found[1:] != found[:-1]).nonzero()[0].tolist()  # where a run starts, where it ends, in turn
    return [Span(start, end - start) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def token_count(grid: GridTHW, spatial_merge_size: int) -> int:
    """How many tokens an image or video of this grid takes: t*h*w / spatial_merge_size**2.

    Raises
    ------
    RefusedRequest
        h or w is not a multiple of spatial_merge_size, so the patches cannot be merged.
    """
    t, h, w = grid
    if h % spatial_merge_size or w % spatial_merge_size:
        raise RefusedRequest(
            "media",
            f"a grid_thw of {t}x{h}x{w}: h and w must be multiples of spatial_merge_size "
            f"{spatial_merge_size}, because that many patches per side become one token",
        )
    return t * h * w // spatial_merge_size**2


def collapse(ids: Sequence[int], spans: Sequence[Span]) -> list[int]:
    """Return ``ids`` with each span shortened to one placeholder."""
    return _with_lengths(ids, spans, [1] * len(spans))


def expand(ids: Sequence[int], spans: Sequence[Span], counts: Sequence[int]) -> list[int]:
    """Return ``ids`` with span i made ``counts[i]`` placeholders long; all other ids are kept."""
    return _with_lengths(ids, spans, counts)


def expand_array(values: IdArray, spans: Sequence[Span], counts: Sequence[int]) -> IdArray:
    """`expand` for an array."""
    pieces = []
    position = 0
    for span, count in zip(spans, counts, strict=True):
        pieces.append(values[position : span.start])
        pieces.append(values[span.start : span.start + 1].repeat(count))
        position = span.start + span.length
    return numpy.concatenate([*pieces, values[position:]])


def offsets(spans: Sequence[Span], counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, last) position of each span, both inclusive, once it is ``counts[i]`` long.

    This is the form in which SGLang keeps the place of an image (``MultimodalDataItem.offsets``).
    """
    result = []
    shift = 0
    for span, count in zip(spans, counts, strict=True):
        first = span.start + shift
        result.append((first, first + count - 1))
        shift += count - span.length
    return result


def _with_lengths(ids: Sequence[int], spans: Sequence[Span], lengths: Sequence[int]) -> list[int]:
    if [span.length for span in spans] == list(lengths):
        return list(ids)
    result: list[int] = []
    position = 0
    for span, length in zip(spans, lengths, strict=True):
        result += ids[position : span.start]
        result += [ids[span.start]] * length
        position = span.start + span.length
    result += ids[position:]
    return result


def _run(token: int, modality: str, start: int, length: int) -> str:
    if length == 1:
        article = "a" if modality == "video" else "an"
        return f"{article} {modality} placeholder (token {token}) at position {start}"
    return (
        f"a run of {length} {modality} placeholders (token {token}) at positions {start} to "
        f"{start + length - 1}"
    )
