"""The state of a request, and how it travels from one of our wrappers to the next.

The outermost wrapper enters a scope; the inner wrappers find it with `current`. A context variable carries
it. Context variables do not reach the worker threads that 0.5.17 and later use. The loader's result reaches
them, so `note` also puts the scope on that result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from deepeyes_patch.errors import InternalError, RefusedRequest
from deepeyes_patch.ids import spans, video_blocks
from deepeyes_patch.ids.request import PretokenizedRequest, Resolution, ServerVideos
from deepeyes_patch.ids.spans import GridTHW, token_count
from deepeyes_patch.request import preprocessed
from deepeyes_patch.seams.families import Model, pixel_bounds


@dataclass(frozen=True)
class Encoded:
    """What an encoder sent of a request's images and videos (encoder disaggregation).

    The grids are (t, h, w) of each image and video, in patches. ``video_times`` are the seconds of each group
    of frames, for each video; empty if the encoder sent none.
    """

    image_grids: list[GridTHW]
    video_grids: list[GridTHW]
    video_times: list[list[float]]


class TextScope:
    """The state while SGLang's outermost method runs on text, or on ids that a class handles by itself."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor


class Scope(TextScope):
    """A pre-tokenized request while SGLang's outermost method runs.

    ``request``: the caller's ids and their spans. ``model``: what is known of the processor and its model.
    ``images`` and ``videos``: what came with the ids, checked. ``encoded``: what an encoder sent instead.
    """

    def __init__(
        self,
        processor: Any,
        request: PretokenizedRequest,
        model: Model,
        images: Sequence[Any] = (),
        videos: Sequence[Any] = (),
        encoded: Encoded | None = None,
    ) -> None:
        self.processor = processor
        self.request = request
        self.model = model
        self.images, self.videos, self.encoded = images, videos, encoded
        self.resolution: Resolution | None = None
        # How many tokens the HF processor has made of each audio, and of how many frames of its spectrogram.
        self.audio_lengths: list[int] = []
        self.audio_frames: Any = None
        raw = [None] * (0 if encoded is None else len(encoded.video_grids))
        self.video_grids = raw or preprocessed.grids_of(preprocessed.VIDEOS, videos)
        # The seconds between groups of frames, where the caller says them. For raw videos, the HF processor's
        # ids and the times of frames follow later, by the number of the video.
        self.given_seconds = preprocessed.seconds_of(videos)
        self.video_times: dict[int, dict[str, Any]] = {}
        self.video_blocks: list[video_blocks.Block | video_blocks.Expanded] = []
        if None not in self.video_grids:
            self._set_video_blocks([])

    @property
    def raw(self) -> tuple[list[Any], list[Any]]:
        """The images and videos that did not come preprocessed."""
        images, videos = (
            [item for item in items if not preprocessed.is_preprocessed(item)]
            for items in (self.images, self.videos)
        )
        return images, videos

    @property
    def is_preprocessed(self) -> bool:
        """Whether every image and video came preprocessed, so that no HF processor runs."""
        return bool(self.images or self.videos) and self.raw == ([], [])

    def resolve(
        self, grids: list[GridTHW], video_grids: Sequence[GridTHW] = (), tokenizer: Any = None
    ) -> Resolution:
        """Match the caller's ids with the grids, and remember the result.

        Raises
        ------
        RefusedRequest
            Ids and grids do not fit.
        """
        self.resolution = self.check(grids, video_grids, tokenizer)
        return self.resolution

    def check(
        self, grids: list[GridTHW], video_grids: Sequence[GridTHW] = (), tokenizer: Any = None
    ) -> Resolution:
        """Match the caller's ids with the grids, as `resolve` does, but do not remember the result."""
        known, server_videos = self.resolution, None
        if known is not None and not self.request.video_count and grids == known.grids:
            return known
        if self.request.video_count:
            spell = (tokenizer or self.processor._processor.tokenizer).decode
            server_videos = ServerVideos(list(video_grids), self.video_blocks, spell)
        return self.request.resolve(
            grids,
            self.model.spatial_merge_size,
            lambda: pixel_bounds(self.processor),
            server_videos,
            self.audio_lengths,
        )

    def read_audio(self, ids: Sequence[int], frames: Any) -> None:
        """Remember what the HF processor made of the audio: ``ids`` [T], and ``frames`` int64 [audios]."""
        self.audio_lengths = [span.length for span in spans.find_audio_spans(ids, self.request.tokens)]
        self.audio_frames = frames

    def read_video_blocks(self, ids: Sequence[int], video_grids: list[GridTHW]) -> None:
        """Find the blocks of raw videos, which have these grids, in the HF processor's ids; remember them."""
        self._set_video_blocks(
            video_blocks.read_blocks(ids, video_grids, self.model.spatial_merge_size, self.request.tokens)
        )

    def _set_video_blocks(self, made: Sequence[video_blocks.Block]) -> None:
        remaining, merge = iter(made), self.model.spatial_merge_size
        self.video_blocks = [
            next(remaining) if grid is None else video_blocks.Expanded(token_count(grid, merge), grid[0])
            for grid in self.video_grids
        ]


class Reception:
    """A request that waits for an encoder (encoder disaggregation), while it receives the embeddings.

    ``ids``: the prompt for the processor, if SGLang passes none. ``failure``: the refusal or the fault of our
    own that the processor's wrapper raised. It is kept here because code of SGLang may catch it.
    """

    def __init__(self, ids: Sequence[int] | None) -> None:
        self.ids = ids
        self.failure: RefusedRequest | InternalError | None = None


class Admission:
    """A pre-tokenized request with media, from the tokenizer manager's method to the end of that method.

    ``judged``: the processor's result that passed the last look; ``None``: no result did. If SGLang hands
    another result on, the request took a path that no wrapper of ours covers.
    """

    def __init__(self) -> None:
        self.judged: Any = None


_admission: ContextVar[Admission | None] = ContextVar("deepeyes_patch_admission", default=None)
_scope: ContextVar[TextScope | Reception | None] = ContextVar("deepeyes_patch_scope", default=None)

# The attribute under which a loader's result carries its scope to the worker thread.
_NOTE = "_deepeyes_patch_scope"


@contextlib.contextmanager
def entered(scope: TextScope | Reception) -> Iterator[None]:
    """Make ``scope`` the current one for the ``with`` block."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


@contextlib.contextmanager
def admitted(admission: Admission) -> Iterator[None]:
    """Make ``admission`` the current one for the ``with`` block."""
    token = _admission.set(admission)
    try:
        yield
    finally:
        _admission.reset(token)


def passed_last_look(result: Any) -> None:
    """Tell the current `Admission`, if there is one, that a result passed the last look."""
    if (admission := _admission.get()) is not None:
        admission.judged = result


def current() -> TextScope | None:
    """The scope of the request that SGLang works on, text prompts included."""
    scope = _scope.get()
    return scope if isinstance(scope, TextScope) else None


def pretokenized() -> Scope | None:
    """The scope of the pre-tokenized request that SGLang works on."""
    scope = _scope.get()
    return scope if isinstance(scope, Scope) else None


def reception() -> Reception | None:
    """The `Reception` of the request that is receiving embeddings."""
    scope = _scope.get()
    return scope if isinstance(scope, Reception) else None


def note(base_output: Any, scope: Scope) -> Any:
    """Put a scope on a loader's result, and return the result."""
    setattr(base_output, _NOTE, scope)
    return base_output


def noted(base_output: Any) -> Scope | None:
    """The scope that `note` put on a loader's result."""
    scope: Scope | None = getattr(base_output, _NOTE, None)
    return scope
