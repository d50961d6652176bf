"""The frames of a video and their times, between SGLang's decoder and the HF processor.

``transformers`` decides by itself which frames of a clip it takes, and resizes them once. SGLang samples in
its own way and resizes first, so for many clips it gets another grid, or other times. `sample` asks the
loaded HF video processor which frames it would take, and leaves their size alone.

Metadata are the dict that SGLang hands to ``transformers``: ``fps`` and ``total_num_frames`` of the clip,
``frames_indices`` of the frames taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# What SGLang and the ``transformers`` of Qwen3-VL sample at unless told otherwise; Qwen2.5-VL's takes all
# frames unless it is told.
DEFAULT_FPS = 2.0

# Keys of --mm-process-config's "video" part that size frames.
SIZING = ("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width")

_NOTE = "_deepeyes_patch_metadata"


def sample(
    decoder: Any, video_processor: Any, config: Mapping[str, Any]
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The frames that the HF video processor takes, uint8 [frames, 3, height, width], and the metadata.

    Parameters
    ----------
    decoder:
        SGLang's open video: its own wrapper, or decord's reader in older releases.
    video_processor:
        The HF processor's; its ``sample_frames`` chooses.
    config:
        The ``video`` part of --mm-process-config: ``fps`` or ``nframes``, ``min_frames``, ``max_frames``.

    Raises
    ------
    ValueError
        The clip cannot be sampled at that rate.
    """
    from transformers.video_utils import VideoMetadata

    total = len(decoder)
    fps = float(decoder.avg_fps if hasattr(decoder, "avg_fps") else decoder.get_avg_fps())
    metadata: dict[str, Any] = {
        "fps": fps,
        "duration": total / fps,
        "total_num_frames": total,
        "video_backend": "torchvision",
    }
    wanted = {key: config[key] for key in ("min_frames", "max_frames") if key in config}
    if "nframes" in config:
        wanted["num_frames"] = config["nframes"]
    else:
        wanted["fps"] = config.get("fps") or getattr(video_processor, "fps", None) or DEFAULT_FPS
    try:
        indices = video_processor.sample_frames(metadata=VideoMetadata(**metadata), **wanted)
    except (ValueError, ZeroDivisionError, RuntimeError) as error:
        raise ValueError(f"a video of {total} frames at {fps:g} fps cannot be sampled: {error}") from error
    metadata["frames_indices"] = [int(index) for index in indices]
    if not metadata["frames_indices"]:
        raise ValueError(f"a video of {total} frames at {fps:g} fps gives no frames at {wanted}")
    return _frames(decoder, metadata["frames_indices"]).permute(0, 3, 1, 2), metadata


def is_decoder(video: Any) -> bool:
    """Whether this is an open clip, and not frames or something preprocessed."""
    return hasattr(video, "avg_fps") or hasattr(video, "get_avg_fps")


def _frames(decoder: Any, indices: list[int]) -> torch.Tensor:
    if hasattr(decoder, "get_frames_as_tensor"):
        found: torch.Tensor = decoder.get_frames_as_tensor(indices)
        return found
    return torch.from_numpy(decoder.get_batch(indices).asnumpy())


def seconds_per_grid(metadata: Mapping[str, Any], temporal_patch_size: int) -> float:
    """The time between two groups of frames, in seconds."""
    sampled_fps = len(metadata["frames_indices"]) / metadata["total_num_frames"] * metadata["fps"]
    return float(temporal_patch_size / sampled_fps)


def group_times(metadata: Mapping[str, Any], temporal_patch_size: int) -> list[float]:
    """The time of each group of ``temporal_patch_size`` frames, in seconds: the middle of its first and last.

    The last frame is repeated where the last group wants more.
    """
    indices = list(metadata["frames_indices"])
    indices += indices[-1:] * (-len(indices) % temporal_patch_size)
    starts = range(0, len(indices), temporal_patch_size)
    return [(indices[i] + indices[i + temporal_patch_size - 1]) / 2 / metadata["fps"] for i in starts]


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
