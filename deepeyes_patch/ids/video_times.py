"""The times of a video's frames, from the metadata that SGLang hands to ``transformers``.

The metadata is a dict: ``fps`` and ``total_num_frames`` of the clip, ``frames_indices`` of the frames taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from deepeyes_patch.errors import RefusedRequest


def seconds_per_grid(metadata: Mapping[str, Any], temporal_patch_size: int) -> float:
    """The time between two groups of frames, in seconds."""
    sampled_fps = len(metadata["frames_indices"]) / metadata["total_num_frames"] * metadata["fps"]
    return float(temporal_patch_size / sampled_fps)


def group_times(metadata: Mapping[str, Any], temporal_patch_size: int) -> list[float]:
    """The time of each group of ``temporal_patch_size`` frames, in seconds.

    This is the middle between the first and the last frame of the group. If the last group has too few
    frames, the last frame is repeated.
    """
    indices = list(metadata["frames_indices"])
    indices += indices[-1:] * (-len(indices) % temporal_patch_size)
    starts = range(0, len(indices), temporal_patch_size)
    return [(indices[i] + indices[i + temporal_patch_size - 1]) / 2 / metadata["fps"] for i in starts]


def checked(metadata: Mapping[str, Any], frames: int) -> dict[str, Any]:
    """A copy of the metadata, with ``frames_indices`` as plain ints.

    Raises
    ------
    RefusedRequest
        The metadata does not describe this many frames.
    """
    try:
        indices = [int(index) for index in metadata["frames_indices"]]
        total, fps = float(metadata["total_num_frames"]), float(metadata["fps"])
        if not (0 < total < math.inf and 0 < fps < math.inf):
            raise ValueError(f"{total:g} frames at {fps:g} fps")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RefusedRequest("video", f"the times of a video's frames are unknown: {error!r}") from error
    if len(indices) != frames or not indices:
        raise RefusedRequest(
            "video", f"{frames} frames of a video were taken, and the times of {len(indices)} are known"
        )
    return {**metadata, "frames_indices": indices}
