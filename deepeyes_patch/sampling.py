"""The times of a video's frames, between SGLang's decoder and the HF processor.

Metadata are the dict that SGLang hands to ``transformers``: ``fps`` and ``total_num_frames`` of the clip,
``frames_indices`` of the frames taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_NOTE = "_deepeyes_patch_metadata"


def seconds_per_grid(metadata: Mapping[str, Any], temporal_patch_size: int) -> float:
    """The time between two groups of frames, in seconds."""
    sampled_fps = len(metadata["frames_indices"]) / metadata["total_num_frames"] * metadata["fps"]
    return float(temporal_patch_size / sampled_fps)


def note(video: torch.Tensor, metadata: Mapping[str, Any]) -> None:
    """Keep the metadata with the frames, which travel to a worker thread from 0.5.17 on.

    Raises
    ------
    ValueError
        They are not metadata of these frames.
    """
    try:
        kept = {**metadata, "frames_indices": [int(index) for index in metadata["frames_indices"]]}
        rate = seconds_per_grid(kept, 1)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"the times of a video's frames are unknown: {error!r}") from error
    known = len(kept["frames_indices"])
    if known != len(video) or not rate > 0:
        raise ValueError(f"{len(video)} frames of a video were taken, and the times of {known} are known")
    setattr(video, _NOTE, kept)


def noted(video: Any) -> dict[str, Any] | None:
    """A copy of the metadata kept with the frames of a video: some releases write into it."""
    kept = getattr(video, _NOTE, None)
    return None if kept is None else {**kept, "frames_indices": list(kept["frames_indices"])}
