"""Pure functions on token ids: where the image placeholders are, and how many there should be.

A *span* is a run of the image placeholder (``<|image_pad|>``) directly between ``vision_start`` and
``vision_end``. Nothing here decodes ids, and every function is linear in the number of ids, with the
inner loops left to ``list``'s own C code: prompts reach a quarter of a million tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class VisionTokens:
    """The token ids that a processor gives a meaning to.

    ``foreign`` are placeholders of the modalities that a pre-tokenized request cannot carry, by
    name (``{"video": 151656}``): wherever one stands, nothing is behind it.
    """

    image: int
    vision_start: int
    vision_end: int
    foreign: Mapping[str, int] = field(default_factory=dict)


class Span(NamedTuple):
    """``length`` placeholders from position ``start`` on."""

    start: int
    length: int


def find_spans(ids: Sequence[int], tokens: VisionTokens) -> list[Span]:
    """Return the image spans of ``ids``, in order.

    Raises
    ------
    ValueError
        A placeholder stands outside a span (no ``vision_start`` directly before its run, or no
        ``vision_end`` directly after it), or a placeholder of another modality occurs. The message
        names the position.
    """
    for modality, token in tokens.foreign.items():
        if token in ids:
            raise ValueError(
                f"input_ids hold a {modality} placeholder (token {token}) at position "
                f"{ids.index(token)}, and no {modality} can come with a pre-tokenized request"
            )
    spans: list[Span] = []
    position = 0
    while True:
        try:
            start = ids.index(tokens.image, position)
        except ValueError:
            return spans
        try:
            end = ids.index(tokens.vision_end, start)
        except ValueError:
            end = len(ids)
        run = ids[start:end]
        length = len(run)
        if run.count(tokens.image) != length:
            length = next(i for i, token in enumerate(run) if token != tokens.image)
        if start == 0 or ids[start - 1] != tokens.vision_start:
            raise ValueError(
                f"input_ids hold {_run(tokens.image, start, length)} without vision_start (token "
                f"{tokens.vision_start}) directly before it, so it belongs to no image"
            )
        if start + length != end or end == len(ids):
            raise ValueError(
                f"input_ids hold {_run(tokens.image, start, length)} without vision_end (token "
                f"{tokens.vision_end}) directly after it, so it belongs to no image"
            )
        spans.append(Span(start, length))
        position = end + 1


def collapse(ids: Sequence[int], spans: Sequence[Span]) -> list[int]:
    """Return ``ids`` with each span shortened to one placeholder."""
    return _with_lengths(ids, spans, [1] * len(spans))


def expand(ids: Sequence[int], spans: Sequence[Span], counts: Sequence[int]) -> list[int]:
    """Return ``ids`` with span i made ``counts[i]`` placeholders long; all other ids are kept."""
    return _with_lengths(ids, spans, counts)


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
    result: list[int] = []
    position = 0
    for span, length in zip(spans, lengths, strict=True):
        result += ids[position : span.start]
        result += [ids[span.start]] * length
        position = span.start + span.length
    result += ids[position:]
    return result


def _run(token: int, start: int, length: int) -> str:
    if length == 1:
        return f"an image placeholder (token {token}) at position {start}"
    return (
        f"a run of {length} image placeholders (token {token}) at positions {start} to {start + length - 1}"
    )
