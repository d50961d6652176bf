"""One pre-tokenized request: matches the caller's ids with the grids of the images and videos.

A *span* is a run of placeholders between ``vision_start`` and ``vision_end``; see `spans`.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids import audio, reading, spans, video_blocks
from deepeyes_patch.ids.spans import GridTHW, IdArray, Span
from deepeyes_patch.ids.tokens import VisionTokens
from deepeyes_patch.ids.video_blocks import Block, Expanded, Spell


@dataclass(frozen=True)
class ServerVideos:
    """What the server's HF processor made of a request's videos.

    ``grids``: (t, h, w) of each video, in patches. ``blocks``: the ids of each video, or how many they must
    be. ``spell`` turns ids into text.
    """

    grids: list[GridTHW]
    blocks: list[Block | Expanded]
    spell: Spell


@dataclass(frozen=True)
class Video:
    """A video in the ids: (first, last) position of each of its spans, both inclusive, and its grid."""

    offsets: list[tuple[int, int]]
    grid: GridTHW


@dataclass(frozen=True)
class Resolution:
    """What the model must get.

    ``ids``: the caller's ids, with single placeholders expanded. ``make_values``: makes `values`.
    ``offsets``: (first, last) position of each image in ``ids``, both inclusive. ``grids``: (t, h, w) of each
    image, in patches. ``videos``: the videos, in order. ``audio``: (first, last) position of each audio, both
    inclusive.
    """

    ids: list[int]
    make_values: Callable[[], IdArray] = field(compare=False)
    offsets: list[tuple[int, int]]
    grids: list[GridTHW]
    videos: list[Video] = field(default_factory=list)
    audio: list[tuple[int, int]] = field(default_factory=list)

    @functools.cached_property
    def values(self) -> IdArray:
        """``ids`` as int64 [T]. Nobody may change them: they can be those of the request."""
        return self.make_values()


class PretokenizedRequest:
    """The ids of a request and its spans.

    Parameters
    ----------
    ids:
        The caller's token ids; copied.
    tokens:
        The special ids, from the processor's configuration.
    vocab_size:
        How many rows the model's embedding has. SGLang clamps ids beyond it to the nearest row. ``None`` if
        the configuration does not say it: then only negative ids are refused.
    image_count:
        The number of images.
    video_count:
        The number of videos.
    audio_count:
        The number of audios.
    expanded:
        Which images came preprocessed. By SGLang's contract, their spans are already expanded, so a single
        placeholder is a single token.

    Raises
    ------
    RefusedRequest
        An item is not a token id; a placeholder stands outside a span; the number of image spans is not the
        number of images, or that of audio spans not the number of audios; or there are fewer video spans than
        videos.
    """

    def __init__(
        self,
        ids: Sequence[int],
        tokens: VisionTokens,
        *,
        vocab_size: int | None,
        image_count: int,
        video_count: int = 0,
        audio_count: int = 0,
        expanded: Collection[int] = (),
    ) -> None:
        values, self.ids = reading.token_ids(ids, vocab_size)
        self._values = values
        tokens = tokens.with_videos() if video_count else tokens
        self.tokens = tokens.with_audio() if audio_count else tokens
        self.spans: list[Span] = spans.find_spans(values, self.tokens)
        self.video_spans: list[Span] = spans.find_video_spans(values, self.tokens)
        self.audio_spans: list[Span] = spans.find_audio_spans(values, self.tokens)
        self.video_count = video_count
        self.expanded = expanded
        self._check_count(image_count)
        audio.check_count(self.audio_spans, audio_count)
        if len(self.video_spans) < video_count:
            raise RefusedRequest(
                "count",
                f"input_ids hold {len(self.video_spans)} span(s) of video placeholders (vision_start, "
                f"placeholders, vision_end), and {video_count} video(s) came with them",
            )

    def collapsed(self) -> list[int]:
        """The caller's ids with one placeholder per image: upstream's own convention."""
        return spans.collapse(self.ids, self.spans)

    def resolve(
        self,
        grids: Sequence[GridTHW],
        spatial_merge_size: int,
        pixel_bounds: Callable[[], str] = str,
        server_videos: ServerVideos | None = None,
        audio_lengths: Sequence[int] = (),
    ) -> Resolution:
        """Match every span with the grid of its image or video, or with the length of its audio.

        Parameters
        ----------
        grids:
            (t, h, w) in patches for each image, in order, as the server's processor made them.
        spatial_merge_size:
            Patches per side that become one token; image i takes t*h*w / spatial_merge_size**2.
        pixel_bounds:
            Describes the server's effective pixel bounds, for the message; called on refusal only.
        server_videos:
            The videos, in order; ``None`` if the request has none.
        audio_lengths:
            How many tokens the server's processor makes of each audio.

        Raises
        ------
        RefusedRequest
            spatial_merge_size does not divide a grid; the number of spans is not the number of grids; the
            length of a span is neither that of its image or audio nor, for raw media, 1; or a video is
            neither the block that the server's processor makes of it nor one placeholder.
        """
        self._check_count(len(grids))
        counts = [spans.token_count(grid, spatial_merge_size) for grid in grids]
        for index, (span, count) in enumerate(zip(self.spans, counts, strict=True)):
            if span.length != count and (span.length != 1 or index in self.expanded):
                raise self._wrong_length(index, grids[index], count, spatial_merge_size, pixel_bounds)
        audio.check_lengths(self.audio_spans, audio_lengths)
        if server_videos is None and not self.video_count:
            return self._with_lengths(list(grids), counts, audio_lengths)
        return self._with_videos(list(grids), counts, spatial_merge_size, server_videos)

    def _with_lengths(
        self, grids: list[GridTHW], counts: Sequence[int], audio_lengths: Sequence[int]
    ) -> Resolution:
        places, lengths = audio.joined(self.spans, counts, self.audio_spans, audio_lengths)
        ids = self.ids
        if is_short := any(span.length != length for span, length in zip(places, lengths, strict=True)):
            ids = spans.expand(ids, places, lengths)

        def values() -> IdArray:
            return spans.expand_array(self._values, places, lengths) if is_short else self._values

        offsets = spans.offsets(places, lengths)
        if not self.audio_spans:
            return Resolution(ids, values, offsets, grids)
        of_place = dict(zip(places, offsets, strict=True))
        images, sounds = ([of_place[span] for span in own] for own in (self.spans, self.audio_spans))
        return Resolution(ids, values, images, grids, audio=sounds)

    def _wrong_length(
        self,
        index: int,
        grid: GridTHW,
        count: int,
        spatial_merge_size: int,
        pixel_bounds: Callable[[], str],
    ) -> RefusedRequest:
        t, h, w = grid
        span = self.spans[index]
        sent = (
            f"image {index} of {len(self.spans)}: input_ids hold {span.length} image placeholders for it "
            f"from position {span.start} on"
        )
        sizes = f"grid_thw {t}x{h}x{w}, spatial_merge_size {spatial_merge_size}"
        if index in self.expanded:
            return RefusedRequest(
                "length", f"{sent}, and the image_grid_thw that came with it makes {count} ({sizes})"
            )
        if bounds := pixel_bounds():
            sizes += f", {bounds}"
        return RefusedRequest(
            "length",
            f"{sent}, and the server's image processor makes {count} ({sizes}). Send {count} or a single "
            f"one, with the image sized as the server sizes it",
        )

    def _with_videos(
        self,
        grids: list[GridTHW],
        counts: list[int],
        spatial_merge_size: int,
        server_videos: ServerVideos | None,
    ) -> Resolution:
        made = 0 if server_videos is None else len(server_videos.grids)
        if server_videos is None or made != self.video_count:
            raise RefusedRequest(
                "video", f"{self.video_count} video(s) came with input_ids, and the server made {made}"
            )
        blocks = server_videos.blocks
        if made != len(blocks):
            raise RefusedRequest(
                "inexact",
                f"the ids that SGLang's processor made of {made} video(s) did not pass through "
                f"deepeyes-patch, so it cannot tell whether the input_ids fit; please report it",
            )

        def describe(index: int) -> str:
            t, h, w = server_videos.grids[index]
            return (
                f"grid_thw {t}x{h}x{w}, spatial_merge_size {spatial_merge_size}; send a single placeholder, "
                f"or the video's frames sampled and sized as the server does it"
            )

        places = video_blocks.find_places(self.ids, self.video_spans, blocks, server_videos.spell, describe)
        ids = video_blocks.splice(self.ids, self.video_spans, places, blocks)
        images = spans.find_spans(ids, self.tokens)
        ids = spans.expand(ids, images, counts)
        runs = iter(spans.find_video_spans(ids, self.tokens))
        videos = []
        for place, grid in zip(places, server_videos.grids, strict=True):
            t, h, w = grid
            own = [next(runs) for _ in range(place.spans)]
            count = sum(run.length for run in own)
            if count != spans.token_count(grid, spatial_merge_size):
                raise RefusedRequest(
                    "video", f"the server made a video of grid_thw {t}x{h}x{w}, and {count} tokens of it"
                )
            videos.append(Video([(run.start, run.start + run.length - 1) for run in own], grid))
        offsets = spans.offsets(images, counts)
        return Resolution(ids, lambda: numpy.asarray(array("q", ids)), offsets, grids, videos)

    def _check_count(self, image_count: int) -> None:
        if len(self.spans) != image_count:
            raise RefusedRequest(
                "count",
                f"input_ids hold {len(self.spans)} image span(s) (vision_start, placeholders, "
                f"vision_end), and {image_count} image(s) came with them",
            )
