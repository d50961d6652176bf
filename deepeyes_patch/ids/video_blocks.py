"""The ids of videos: what the HF processor makes of a video, and where the caller's ids hold it.

The HF processor turns ``vision_start, video placeholder, vision_end`` into a *block*. A block of Qwen2.5-VL
is one span of t*h*w / merge**2 placeholders. A block of Qwen3-VL has one span of h*w / merge**2 placeholders
for each of its t groups of frames. A *label* stands before each of these spans: the text of the group's time,
``<1.2 seconds>``. Some versions of ``transformers`` keep the outer ``vision_start`` and ``vision_end`` around
the groups, others drop them.

Labels are compared as text, not as ids. In a whole prompt, the tokenizer may have merged the first character
of a label with the characters before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids import spans
from deepeyes_patch.ids.spans import GridTHW, Span
from deepeyes_patch.ids.tokens import VisionTokens

# Turns ids into text.
Spell = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Block:
    """What the HF processor makes of one video.

    ``ids`` replace ``vision_start, placeholder, vision_end``. ``lengths`` are the lengths of the spans.
    ``labels`` are the ids before each span's ``vision_start``, back to the last ``vision_end`` or to the
    start of the block.
    """

    ids: list[int]
    lengths: list[int]
    labels: list[list[int]]


@dataclass(frozen=True)
class Expanded:
    """A video that came preprocessed, so that its ids are the caller's, expanded.

    ``count`` placeholders, in one span, or in one span for each of ``groups`` groups of frames.
    """

    count: int
    groups: int

    def lengths(self, own: Sequence[int]) -> list[int] | None:
        """The lengths of its spans, if the spans of these lengths begin with it."""
        apart = [self.count // self.groups] * self.groups
        return next((whole for whole in ([self.count], apart) if list(own[: len(whole)]) == whole), None)


class Place(NamedTuple):
    """Which of the caller's spans belong to a video: from ``first`` up to, but not including, ``stop``.

    ``short``: the video is one placeholder, which stands for the whole block. ``spans``: how many spans the
    video has in the end.
    """

    first: int
    stop: int
    short: bool
    spans: int


def read_blocks(
    ids: Sequence[int], grids: Sequence[GridTHW], spatial_merge_size: int, tokens: VisionTokens
) -> list[Block]:
    """Split the HF processor's ids of a prompt that holds only images and, after them, videos.

    Parameters
    ----------
    ids:
        The expanded ids.
    grids:
        (t, h, w) in patches for each video, in order.

    Raises
    ------
    RefusedRequest
        The ids do not look like blocks of these grids.
    """
    images = spans.find_spans(ids, tokens)
    position = images[-1].start + images[-1].length + 1 if images else 0
    video_spans = spans.find_video_spans(ids, tokens)
    lengths = [span.length for span in video_spans]
    whole = [spans.token_count(grid, spatial_merge_size) for grid in grids]
    grouped = [[count // t] * t for (t, _, _), count in zip(grids, whole, strict=True)]
    if lengths == [length for groups in grouped for length in groups]:
        layout = grouped
    elif lengths == whole:
        layout = [[count] for count in whole]
    else:
        raise _unknown_layout(ids, f"spans of {lengths} placeholders")
    blocks = []
    remaining = iter(video_spans)
    for groups in layout:
        start, labels, before = position, [], position
        for _ in groups:
            span = next(remaining)
            labels.append(list(ids[before : span.start - 1]))
            before = position = span.start + span.length + 1
        outer = labels[0][:1] == [tokens.vision_start]
        if outer:
            labels[0] = labels[0][1:]
            if list(ids[position : position + 1]) != [tokens.vision_end]:
                raise _unknown_layout(ids, f"an outer vision_start at {start} that does not end")
            position += 1
        blocks.append(Block(list(ids[start:position]), groups, labels))
    if position != len(ids):
        raise _unknown_layout(ids, f"ids after the last video, from {position} on")
    return blocks


def find_places(
    ids: Sequence[int],
    video_spans: Sequence[Span],
    blocks: Sequence[Block | Expanded],
    spell: Spell,
    describe: Callable[[int], str],
) -> list[Place]:
    """Match every video with its spans in the caller's ids.

    Parameters
    ----------
    ids, video_spans:
        The caller's ids, and the spans of the video placeholder in them.
    blocks:
        What the server's processor makes of each video, or how it must be expanded, in order.
    spell:
        Turns ids into text; called on labels, and only if their ids differ.
    describe:
        What the server's processor does with video i, for the message; called on refusal only.

    Raises
    ------
    RefusedRequest
        A video is neither its block nor one placeholder, or there are more spans than the videos need.
        The message names the video, the position, what was sent and what was expected.
    """
    places: list[Place] = []
    at = 0
    for index, block in enumerate(blocks):
        video = f"video {index} of {len(blocks)}"
        if at == len(video_spans):
            raise RefusedRequest(
                "video",
                f"{video}: input_ids hold no span (vision_start, placeholders, vision_end) for it; their "
                f"{len(video_spans)} span(s) of video placeholders belong to the videos before it",
            )
        if isinstance(block, Expanded):
            own = block.lengths([span.length for span in video_spans[at : at + block.groups]])
            if own is None:
                raise RefusedRequest("length", f"{video}: {_not_expanded(video_spans[at], block)}")
            places.append(Place(at, at + len(own), False, len(own)))
            at = places[-1].stop
            continue
        problem, count = _mismatch(ids, video_spans, at, block, spell), len(block.lengths)
        if problem is None:
            places.append(Place(at, at + count, False, count))
        elif video_spans[at].length == 1 and not _labelled(ids, video_spans, at, block, spell):
            places.append(Place(at, at + 1, True, count))
        else:
            raise RefusedRequest("video", f"{video}: {problem} ({describe(index)})")
        at = places[-1].stop
    if at < len(video_spans):
        raise RefusedRequest(
            "video",
            f"input_ids hold {len(video_spans)} spans of video placeholders (vision_start, placeholders, "
            f"vision_end), and the {len(blocks)} video(s) that came with them take {at}; the next one is at "
            f"position {video_spans[at].start}",
        )
    return places


def splice(
    ids: Sequence[int],
    video_spans: Sequence[Span],
    places: Sequence[Place],
    blocks: Sequence[Block | Expanded],
) -> list[int]:
    """Return ``ids`` with every short placeholder, and the two ids around it, replaced by its block."""
    result: list[int] = []
    position = 0
    for place, block in zip(places, blocks, strict=True):
        if place.short and isinstance(block, Block):
            start = video_spans[place.first].start
            result += ids[position : start - 1]
            result += block.ids
            position = start + 2
    result += ids[position:]
    return result


def _not_expanded(span: Span, video: Expanded) -> str:
    return (
        f"input_ids hold {span.length} video placeholders for it from position {span.start} on, and the "
        f"video_grid_thw that came with it makes {video.count}, in one span or in {video.groups}"
    )


def _mismatch(
    ids: Sequence[int], video_spans: Sequence[Span], at: int, block: Block, spell: Spell
) -> str | None:
    """How the spans from ``at`` on differ from the block, or ``None``."""
    count = len(block.lengths)
    for number, (length, label) in enumerate(zip(block.lengths, block.labels, strict=True)):
        group = "" if count == 1 else f" for frame group {number} of {count}"
        if at + number == len(video_spans):
            return (
                f"input_ids hold {number} span(s) of video placeholders for it from position "
                f"{video_spans[at].start} on, and the server's video processor makes {count}"
            )
        span = video_spans[at + number]
        if span.length != length:
            return (
                f"input_ids hold {span.length} video placeholders{group} from position {span.start} on, and "
                f"the server's video processor makes {length}"
            )
        if not label:
            continue
        before = _before(ids, video_spans, at + number)
        if list(ids[before : span.start - 1]) == label:
            continue
        expected, text = spell(label), _tail(ids, before, span, spell, label)
        if text != expected if number else not text.endswith(expected):
            return (
                f"input_ids hold the text {text!r} before the placeholders{group} at position {span.start}, "
                f"and the server's video processor writes {expected!r}"
            )
    return None


def _labelled(ids: Sequence[int], video_spans: Sequence[Span], at: int, block: Block, spell: Spell) -> bool:
    """Whether a label, with any time, stands before span ``at``.

    Then a single placeholder is one frame group of an expanded video, not short for the whole video.
    """
    label = block.labels[0]
    if not label:
        return False
    text = _tail(ids, _before(ids, video_spans, at), video_spans[at], spell, label)
    return re.sub(r"\d+", "0", text).endswith(re.sub(r"\d+", "0", spell(label)))


def _before(ids: Sequence[int], video_spans: Sequence[Span], at: int) -> int:
    """Where the ids between two spans begin: one past the ``vision_end`` of the span before ``at``."""
    return video_spans[at - 1].start + video_spans[at - 1].length + 1 if at else 0


def _tail(ids: Sequence[int], before: int, span: Span, spell: Spell, label: Sequence[int]) -> str:
    """The text directly before a span's ``vision_start``, as far back as the label can reach."""
    # Every id spells at least one byte, and the caller's time may have a few digits more than the server's.
    first = span.start - 1 - len(spell(label)) - 8
    return ("..." if first > before else "") + spell(ids[max(before, first) : span.start - 1])


def _unknown_layout(ids: Sequence[int], what: str) -> RefusedRequest:
    return RefusedRequest(
        "video",
        f"the ids that the server's HF processor makes of these videos are laid out in a way that "
        f"deepeyes-patch does not know ({what}, in {len(ids)} ids); please report it",
    )
