"""The last look: a result is returned only if it follows from the caller's ids, whichever path produced it.

The grids come from the items that will be served, not from the inner wrappers. So the last look also checks a
path that no wrapper covers. Its time is linear in the number of ids, in C loops.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids import video_times
from deepeyes_patch.ids.positions import Medium, position_delta, positions, times
from deepeyes_patch.ids.request import Resolution
from deepeyes_patch.ids.video_blocks import Block
from deepeyes_patch.observe import release
from deepeyes_patch.request import grids
from deepeyes_patch.request.scope import Encoded, Scope, passed_last_look
from deepeyes_patch.request.unserved import UnservedRequest


def verify(scope: Scope, result: Any) -> None:
    """Refuse a result that does not follow from the caller's ids.

    Raises
    ------
    RefusedRequest
        Ids, padded ids, offsets or positions differ from what the ids and grids demand.
    """
    images: list[Any] = []
    clips: list[Any] = []
    sounds: list[Any] = []
    for item in part(result, "mm_items") or []:
        if scope.request.audio_spans and item.is_audio():
            sounds.append(item)
        else:
            (clips if _is_clip(scope, item) else images).append(item)
    if scope.encoded is not None:  # its items hold no grids
        image_grids, video_grids = scope.encoded.image_grids, scope.encoded.video_grids
    else:
        image_grids = [row for item in images for row in grids.rows(getattr(item, "image_grid_thw", None))]
        video_grids = [row for clip in clips for row in grids.rows(clip.video_grid_thw, "video_grid_thw")]
    expected = scope.check(image_grids, video_grids)
    ids, padded = part(result, "input_ids"), part(result, "padded_input_ids")
    if ids != expected.ids:
        raise _inexact("input_ids")
    if [tuple(pair) for item in images for pair in item.offsets] != expected.offsets:
        raise _inexact("image offsets")
    if scope.encoded is not None:
        _verify_encoded(scope, scope.encoded, images, clips, expected)
    elif scope.request.video_count:
        _verify_videos(scope, clips, expected)
    elif clips:
        raise _inexact("videos")
    if [tuple(pair) for item in sounds for pair in item.offsets] != expected.audio:
        raise _inexact("audio offsets")
    # SGLang makes the padded ids from its own ids. Both hold the same int objects, which compare fast.
    if padded is not None and _listed(padded) != _padded(ids, [*images, *clips, *sounds]):
        raise _inexact("padded_input_ids")
    _verify_positions(scope, result, _media(scope, expected))
    passed_last_look(result)


def verify_unserved(unserved: UnservedRequest, result: Any) -> None:
    """Refuse a result of a class that we do not serve, unless it holds the caller's ids (expanded).

    Raises
    ------
    RefusedRequest
        Ids or offsets do not follow from the caller's ids.
    """
    items = part(result, "mm_items") or []
    offsets = [tuple(pair) for item in items if item.is_image() for pair in item.offsets]
    unserved.check_result(part(result, "input_ids") or [], offsets)


def part(result: Any, name: str) -> Any:
    """A part of the processor's result, which is a dict up to 0.5.9 and a typed object from 0.5.10 on."""
    return result.get(name) if isinstance(result, dict) else getattr(result, name, None)


def _verify_positions(scope: Scope, result: Any, media: Sequence[Medium]) -> None:
    length = len(part(result, "input_ids"))
    right = positions(length, media, scope.model.spatial_merge_size)
    actual = part(result, "mrope_positions")
    if actual is None or not torch.equal(actual.cpu().long(), torch.from_numpy(right)):
        raise _inexact("M-RoPE positions")
    delta = part(result, "mrope_position_delta")
    if delta is None or int(delta) != position_delta(right):
        raise _inexact("M-RoPE delta")


def _inexact(what: str) -> RefusedRequest:
    return RefusedRequest(
        "inexact",
        f"the {what} that SGLang {release.version()} made for it do not follow from its input_ids and "
        f"grids. Either preprocessed data that came with it says otherwise, or it took a path through "
        f"SGLang's processor that deepeyes-patch does not cover; then please report it",
    )


def _verify_videos(scope: Scope, clips: Sequence[Any], expected: Resolution) -> None:
    """Check that each item holds the spans and features of its videos, and that all times are known."""
    count = scope.request.video_count
    if len(expected.videos) != count:
        raise _inexact("videos")
    remaining = iter(expected.videos)
    for clip in clips:
        own = [next(remaining) for _ in grids.rows(clip.video_grid_thw, "video_grid_thw")]
        if [tuple(pair) for pair in clip.offsets] != [pair for video in own for pair in video.offsets]:
            raise _inexact("video offsets")
        shape = getattr(getattr(clip, "feature", None), "shape", None)
        patches = sum(t * h * w for t, h, w in (video.grid for video in own))
        tokens = sum(last - first + 1 for video in own for first, last in video.offsets)
        # An embedding has a row for each token. Which of the two it must be, `item_checks` has checked.
        if shape is not None and shape[0] not in (patches, tokens):
            raise _inexact("features of videos")
    raw = [index for index, grid in enumerate(scope.video_grids) if grid is None]
    if list(scope.video_times) != raw:
        raise _inexact("times of frames")
    for index in raw:
        video = expected.videos[index]
        seconds = video_times.group_times(scope.video_times[index], _temporal_patch_size(scope))
        if len(seconds) != video.grid[0]:
            raise _inexact("groups of frames")
        _verify_labels(scope, index, seconds)


def _verify_encoded(
    scope: Scope, encoded: Encoded, images: Sequence[Any], clips: Sequence[Any], expected: Resolution
) -> None:
    """Check the spans of videos, the rows of all embeddings, and the times that SGLang wrote."""
    spans = [pair for video in expected.videos for pair in video.offsets]
    if [tuple(pair) for clip in clips for pair in clip.offsets] != spans:
        raise _inexact("video offsets")
    for item in (*images, *clips):
        count = sum(last - first + 1 for first, last in item.offsets)
        if len(item.precomputed_embeddings) != count:
            raise _inexact("embeddings")
    for index, seconds in enumerate(encoded.video_times):
        _verify_labels(scope, index, seconds)


def _is_clip(scope: Scope, item: Any) -> bool:
    """Whether an item is a video, or a group of its frames."""
    if scope.encoded is not None:
        return bool(item.is_video())
    return getattr(item, "video_grid_thw", None) is not None


def _verify_labels(scope: Scope, index: int, seconds: Sequence[float]) -> None:
    """Check the times that the HF processor wrote before the groups of frames, for a short placeholder."""
    block = scope.video_blocks[index]
    for label, right in zip(block.labels if isinstance(block, Block) else [], seconds, strict=False):
        if not label:  # Qwen2.5-VL writes none
            continue
        text = scope.processor._processor.tokenizer.decode(label)
        written = re.search(r"\d+(\.\d+)?", text)
        # The HF processor writes one digit after the point.
        if not (written and abs(float(written[0]) - right) < 0.05 + 1e-6):
            raise RefusedRequest(
                "video",
                f"video {index} of {scope.request.video_count}: SGLang {release.version()} lets "
                f"the HF processor write {text!r} before frames that are at {right:.2f} seconds",
            )


def pictures(expected: Resolution) -> list[Medium]:
    """The images of a request, in the order of the ids."""
    return [
        Medium(first, last, numpy.arange(t), h, w)
        for (first, last), (t, h, w) in zip(expected.offsets, expected.grids, strict=True)
    ]


def _media(scope: Scope, expected: Resolution) -> list[Medium]:
    """All images, videos and groups of frames, in the order of the ids."""
    media = pictures(expected)
    if not expected.videos:
        return media
    for index, video in enumerate(expected.videos):
        t, h, w = video.grid
        if len(video.offsets) == t:  # each group of frames is a picture of its own (Qwen3-VL)
            media += [Medium(first, last, numpy.arange(1), h, w) for first, last in video.offsets]
        else:
            ((first, last),) = video.offsets
            media.append(Medium(first, last, _times(scope, index, t), h, w))
    return sorted(media, key=lambda medium: medium.first)


def _times(scope: Scope, index: int, t: int) -> Any:
    """Positions on the t axis of one video's groups of frames, relative to the first."""
    per_second = scope.model.tokens_per_second
    if per_second is None:  # Qwen2-VL
        return numpy.arange(t)
    seconds = scope.given_seconds[index]
    if seconds is None:
        seconds = video_times.seconds_per_grid(scope.video_times[index], _temporal_patch_size(scope))
    return times(t, seconds, per_second)


def _temporal_patch_size(scope: Scope) -> int:
    size = scope.model.temporal_patch_size
    assert size is not None
    return int(size)


def are_padded(ids: Sequence[int], items: Sequence[Any]) -> bool:
    """Whether ids hold each item's own padding at its offsets."""
    return list(ids) == _padded(ids, items)


def _listed(ids: Sequence[int]) -> list[int]:
    return ids if isinstance(ids, list) else list(ids)


def _padded(ids: Sequence[int], items: Sequence[Any]) -> list[int]:
    """The ids with each item's own padding at its offsets. With any other padding, the scheduler ends."""
    padded = list(ids)
    for item in items:
        for first, last in item.offsets:
            length = last - first + 1
            if hasattr(item, "padding_sequence"):  # 0.5.23 and later
                padded[first : last + 1] = item.padding_sequence(length)
            else:
                padded[first : last + 1] = [item.pad_value] * length
    return padded
