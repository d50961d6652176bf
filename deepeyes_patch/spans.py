"""Pure functions on token ids: where the placeholders are, and how many there should be.

A *span* is a run of a placeholder (``<|image_pad|>``, ``<|video_pad|>``) directly between
``vision_start`` and ``vision_end``. Nothing here decodes ids, and every function is linear in the number
of ids. Prompts reach a quarter of a million tokens, so the inner loops of what every request meets are left
to ``list``'s own C code; `find_runs`, for the few derived classes, walks over the placeholders themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple


@dataclass(frozen=True)
class VisionTokens:
    """The token ids that a processor gives a meaning to.

    ``foreign`` are placeholders of the modalities that the request does not carry, by name
    (``{"video": 151656}``): wherever one stands, nothing is behind it. ``video`` is the placeholder of
    videos in a request that carries some.
    """

    image: int
    vision_start: int
    vision_end: int
    foreign: Mapping[str, int] = field(default_factory=dict)
    video: int | None = None

    def with_videos(self) -> VisionTokens:
        """The same ids for a request that carries videos."""
        foreign = dict(self.foreign)
        return replace(self, video=foreign.pop("video"), foreign=foreign)


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
    return _spans(ids, tokens, tokens.image, "image")


def find_video_spans(ids: Sequence[int], tokens: VisionTokens) -> list[Span]:
    """Return the spans of the video placeholder, in order; ``[]`` where no videos came along.

    Raises
    ------
    ValueError
        A placeholder stands outside a span; the message names the position.
    """
    return [] if tokens.video is None else _spans(ids, tokens, tokens.video, "video")


def _spans(ids: Sequence[int], tokens: VisionTokens, placeholder: int, modality: str) -> list[Span]:
    spans: list[Span] = []
    position = 0
    while True:
        try:
            start = ids.index(placeholder, position)
        except ValueError:
            return spans
        try:
            end = ids.index(tokens.vision_end, start)
        except ValueError:
            end = len(ids)
        run = ids[start:end]
        length = len(run)
        if run.count(placeholder) != length:
            length = next(i for i, token in enumerate(run) if token != placeholder)
        if start == 0 or ids[start - 1] != tokens.vision_start:
            raise ValueError(
                f"input_ids hold {_run(placeholder, modality, start, length)} without vision_start (token "
                f"{tokens.vision_start}) directly before it, so it belongs to no {modality}"
            )
        if start + length != end or end == len(ids):
            raise ValueError(
                f"input_ids hold {_run(placeholder, modality, start, length)} without vision_end (token "
                f"{tokens.vision_end}) directly after it, so it belongs to no {modality}"
            )
        spans.append(Span(start, length))
        position = end + 1


def find_runs(ids: Sequence[int], token: int) -> list[Span]:
    """Return the runs of ``token``, in order, whatever stands around them."""
    runs: list[Span] = []
    position = 0
    while True:
        try:
            start = ids.index(token, position)
        except ValueError:
            return runs
        position = next((i for i in range(start, len(ids)) if ids[i] != token), len(ids))
        runs.append(Span(start, position - start))


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


def _run(token: int, modality: str, start: int, length: int) -> str:
    if length == 1:
        article = "an" if modality == "image" else "a"
        return f"{article} {modality} placeholder (token {token}) at position {start}"
    return (
        f"a run of {length} {modality} placeholders (token {token}) at positions {start} to "
        f"{start + length - 1}"
    )
