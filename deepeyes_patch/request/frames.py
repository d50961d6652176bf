"""The frames of a video and their times, between SGLang's decoder and the HF processor.

``transformers`` decides by itself which frames of a clip it takes, and resizes them once. SGLang samples in
its own way and resizes first, so for many clips it gets another grid, or other times. `sample` asks the
loaded HF video processor which frames it would take, and does not resize them.

The metadata is the dict that SGLang hands to ``transformers``; see `deepeyes_patch.ids.video_times`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import wrapt

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids import video_times

# The default rate of SGLang, and of transformers for Qwen3-VL. For Qwen2.5-VL, transformers takes all frames
# of a video by default.
DEFAULT_FPS = 2.0

_NOTE = "_deepeyes_patch_metadata"


class Sampled(NamedTuple):
    """What SGLang 0.5.4 and later expects of ``preprocess_video``.

    The frames of a video, uint8 [frames, 3, height, width], and the metadata; or a preprocessed video.
    """

    video: Any
    metadata: dict[str, Any] | None


class Watched(wrapt.ObjectProxy):  # type: ignore[type-arg]  # 1.16 has no type parameters
    """An open clip that knows which frames were taken out of it."""

    def __init__(self, decoder: Any) -> None:
        super().__init__(decoder)
        self._self_indices: list[int] = []

    def get_batch(self, indices: Any) -> Any:
        """decord's method: the frames of these indices."""
        self._self_indices = list(indices)
        return self.__wrapped__.get_batch(indices)

    def metadata(self) -> dict[str, Any]:
        """The metadata of the frames that were taken last."""
        return {**_of_clip(self), "frames_indices": self._self_indices}


def sample(decoder: Any, video_processor: Any, config: Mapping[str, Any]) -> Sampled:
    """The frames that the HF video processor takes.

    Parameters
    ----------
    decoder:
        SGLang's open video: its own wrapper, or decord's reader in older releases.
    video_processor:
        The video processor of the HF processor; its ``sample_frames`` chooses the frames.
    config:
        The ``video`` part of --mm-process-config: ``fps`` or ``nframes``, ``min_frames``, ``max_frames``.

    Raises
    ------
    RefusedRequest
        The clip cannot be sampled at that rate.
    """
    from transformers.video_utils import VideoMetadata

    metadata = _of_clip(decoder)
    total, fps = metadata["total_num_frames"], metadata["fps"]
    options = {key: config[key] for key in ("min_frames", "max_frames") if key in config}
    if "nframes" in config:
        options["num_frames"] = config["nframes"]
    else:
        options["fps"] = config.get("fps") or getattr(video_processor, "fps", None) or DEFAULT_FPS
    try:
        metadata["duration"] = total / fps
        indices = video_processor.sample_frames(metadata=VideoMetadata(**metadata), **options)
    except (ValueError, ZeroDivisionError, RuntimeError) as error:
        raise RefusedRequest(
            "video", f"a video of {total} frames at {fps:g} fps cannot be sampled: {error}"
        ) from error
    metadata["frames_indices"] = [int(index) for index in indices]
    if not metadata["frames_indices"]:
        raise RefusedRequest(
            "video", f"a video of {total} frames at {fps:g} fps gives no frames at {options}"
        )
    return Sampled(_frames(decoder, metadata["frames_indices"]).permute(0, 3, 1, 2), metadata)


def unpack(base_output: Any) -> None:
    """Put videos in the place of the pairs that `Sampled` is: SGLang before 0.5.4 does not take it apart."""
    videos = getattr(base_output, "videos", None)
    if videos and any(isinstance(video, Sampled) for video in videos):
        base_output.videos = [video.video if isinstance(video, Sampled) else video for video in videos]


def is_decoder(video: Any) -> bool:
    """Whether this is an open clip, and not frames or something preprocessed."""
    return hasattr(video, "avg_fps") or hasattr(video, "get_avg_fps")


def _of_clip(decoder: Any) -> dict[str, Any]:
    fps = decoder.avg_fps if hasattr(decoder, "avg_fps") else decoder.get_avg_fps()
    return {"fps": float(fps), "total_num_frames": len(decoder), "video_backend": "torchvision"}


def _frames(decoder: Any, indices: list[int]) -> torch.Tensor:
    if hasattr(decoder, "get_frames_as_tensor"):
        frames: torch.Tensor = decoder.get_frames_as_tensor(indices)
        return frames
    return torch.from_numpy(decoder.get_batch(indices).asnumpy())


def note(video: torch.Tensor, metadata: Mapping[str, Any]) -> None:
    """Keep the metadata with the frames, which travel to a worker thread from 0.5.17 on.

    Raises
    ------
    RefusedRequest
        The metadata does not describe these frames.
    """
    setattr(video, _NOTE, video_times.checked(metadata, len(video)))


def noted(video: Any) -> dict[str, Any] | None:
    """The metadata kept with the frames of a video: a copy, because some releases change what they get."""
    metadata = getattr(video, _NOTE, None)
    return None if metadata is None else {**metadata, "frames_indices": list(metadata["frames_indices"])}
