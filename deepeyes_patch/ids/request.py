"""One pre-tokenized request: the caller's ids, and what they become beside the grids of its media.

Pure logic, free of torch and SGLang.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy

from deepeyes_patch.ids import spans
from deepeyes_patch.ids import video_blocks as videos
from deepeyes_patch.ids.spans import IdArray, Span, VisionTokens
from deepeyes_patch.ids.video_blocks import Block, GridTHW, Spell


@dataclass(frozen=True)
class Videos:
    """What the server's processor made of a request's videos.

    ``grids``: (t, h, w) of each, in patches. ``blocks``: its ids. ``spell`` gives the text of ids.
    """

    grids: list[GridTHW]
    blocks: list[Block]
    spell: Spell


@dataclass(frozen=True)
class Video:
    """A video in its place: (first, last) position of each of its spans, both inclusive, and its grid."""

    offsets: list[tuple[int, int]]
    grid: GridTHW


@dataclass(frozen=True)
class Resolution:
    """What the model must see.

    ``ids``: the caller's ids, single placeholders expanded. ``offsets``: (first, last) position of
    each image in ``ids``, both inclusive. ``grids``: (t, h, w) of each image, in patches. ``videos``: the
    videos, in order.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    grids: list[GridTHW]
    videos: list[Video] = field(default_factory=list)


class PretokenizedRequest:
    """The ids of a request and its spans.

    Parameters
    ----------
    ids:
        The caller's token ids; copied.
    tokens:
        The ids with a meaning, from the processor's configuration.
    vocab_size:
        How many rows the model's embedding has. SGLang clamps ids beyond it to the nearest row.
    image_count:
        How many images came along; ``None`` when only the grids will tell (preprocessed items).
    video_count:
        How many videos came along.
    expanded_only:
        The images came preprocessed, which by SGLang's contract means that every span is expanded
        already: a single placeholder is not read as short for many.

    Raises
    ------
    ValueError
        Something that is no token id, a placeholder outside a span, another number of spans than of
        images, or fewer spans than videos.
    """

    def __init__(
        self,
        ids: Sequence[int],
        tokens: VisionTokens,
        *,
        vocab_size: int,
        image_count: int | None,
        video_count: int = 0,
        expanded_only: bool = False,
    ) -> None:
        values, self.ids = _token_ids(ids, vocab_size)
        self.tokens = tokens.with_videos() if video_count else tokens
        self.spans: list[Span] = spans.find_spans(values, self.tokens)
        self.video_spans: list[Span] = spans.find_video_spans(values, self.tokens)
        self.video_count = video_count
        self.expanded_only = expanded_only
        if image_count is not None:
            self._check_count(image_count)
        if len(self.video_spans) < video_count:
            raise ValueError(
                f"input_ids hold {len(self.video_spans)} span(s) of video placeholders (vision_start, "
                f"placeholders, vision_end), and {video_count} video(s) came with them"
            )

    def collapsed(self) -> list[int]:
        """The caller's ids with one placeholder per image: upstream's own convention."""
        return spans.collapse(self.ids, self.spans)

    def resolve(
        self,
        grids: Sequence[Sequence[int]],
        spatial_merge_size: int,
        pixel_bounds: Callable[[], str] = str,
        made: Videos | None = None,
    ) -> Resolution:
        """Match every span with the grid of its image or video.

        Parameters
        ----------
        grids:
            (t, h, w) in patches for each image, in order, as the server's processor made them.
        spatial_merge_size:
            Patches per side that become one token; image i takes t*h*w / spatial_merge_size**2.
        pixel_bounds:
            Describes the server's effective pixel bounds, for the message; called on refusal only.
        made:
            The videos, in order; ``None`` where the request has none.

        Raises
        ------
        ValueError
            Another number of spans than of grids, a span whose length is neither that of its
            image nor, for a raw image, one, or a video that is neither what the server's processor makes
            of it nor one placeholder.
        """
        rows: list[GridTHW] = [(int(t), int(h), int(w)) for t, h, w in grids]
        self._check_count(len(rows))
        counts = [t * h * w // spatial_merge_size**2 for t, h, w in rows]
        for index, (span, count) in enumerate(zip(self.spans, counts, strict=True)):
            if span.length == count or (span.length == 1 and not self.expanded_only):
                continue
            t, h, w = rows[index]
            grid = f"grid_thw {t}x{h}x{w}, spatial_merge_size {spatial_merge_size}"
            found = (
                f"image {index} of {len(counts)}: input_ids hold {span.length} image placeholders for it "
                f"from position {span.start} on"
            )
            if self.expanded_only:
                raise ValueError(f"{found}, and the image_grid_thw that came with it makes {count} ({grid})")
            raise ValueError(
                f"{found}, and the server's image processor makes {count} ({grid}"
                f"{_prefixed(pixel_bounds())}). Send {count} or a single one, with the image sized as the "
                f"server sizes it"
            )
        if made is None and not self.video_count:
            return Resolution(
                ids=spans.expand(self.ids, self.spans, counts),
                offsets=spans.offsets(self.spans, counts),
                grids=rows,
            )
        return self._with_videos(rows, counts, spatial_merge_size, made)

    def _with_videos(
        self, rows: list[GridTHW], counts: list[int], spatial_merge_size: int, made: Videos | None
    ) -> Resolution:
        found = 0 if made is None else len(made.grids)
        if made is None or found != self.video_count or found != len(made.blocks):
            raise ValueError(f"{self.video_count} video(s) came with input_ids, and the server made {found}")

        def describe(index: int) -> str:
            t, h, w = made.grids[index]
            return (
                f"grid_thw {t}x{h}x{w}, spatial_merge_size {spatial_merge_size}; send a single placeholder, "
                f"or the video's frames sampled and sized as the server does it"
            )

        places = videos.find_places(self.ids, self.video_spans, made.blocks, made.spell, describe)
        ids = videos.splice(self.ids, self.video_spans, places, made.blocks)
        images = spans.find_spans(ids, self.tokens)
        ids = spans.expand(ids, images, counts)
        runs = iter(spans.find_video_spans(ids, self.tokens))
        placed = []
        for block, grid in zip(made.blocks, made.grids, strict=True):
            t, h, w = grid
            if sum(block.lengths) != t * h * w // spatial_merge_size**2:
                raise ValueError(
                    f"the server made a video of grid_thw {t}x{h}x{w}, and {sum(block.lengths)} tokens of it"
                )
            own = [next(runs) for _ in block.lengths]
            placed.append(Video([(run.start, run.start + run.length - 1) for run in own], grid))
        return Resolution(ids=ids, offsets=spans.offsets(images, counts), grids=rows, videos=placed)

    def _check_count(self, image_count: int) -> None:
        if len(self.spans) != image_count:
            raise ValueError(
                f"input_ids hold {len(self.spans)} image span(s) (vision_start, placeholders, "
                f"vision_end), and {image_count} image(s) came with them"
            )


def _token_ids(ids: Sequence[int], vocab_size: int) -> tuple[IdArray, list[int]]:
    """The ids as int64 [T] and as a list of our own; the model has embeddings for all of them."""
    try:
        # Strict, and quick on a list; NumPy's own conversion would cut fractions off.
        values: IdArray = numpy.asarray(array("q", ids))
        own = list(ids) if _are_ints(ids) else values.tolist()
    except (TypeError, OverflowError) as error:
        raise ValueError(f"input_ids must be a flat sequence of token ids: {error}") from error
    outside = numpy.flatnonzero((values < 0) | (values >= vocab_size))
    if len(outside):
        raise ValueError(
            f"input_ids hold {values[outside[0]]} at position {outside[0]}, and the model has embeddings for "
            f"0 to {vocab_size - 1}"
        )
    return values, own


def _are_ints(ids: Sequence[int]) -> bool:
    """Whether this is a list of nothing but Python's own ints (or bools), found in one pass of C code.

    Whatever else is in a list shows in the type of its sum, or lets it have none.
    """
    try:
        return type(ids) is list and type(sum(ids)) is int
    except TypeError:
        return False


def _prefixed(text: str) -> str:
    return f", {text}" if text else ""
