"""The times of a video's frames, from metadata, and how they travel with the frames."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deepeyes_patch import RefusedRequest
from deepeyes_patch.ids import video_times
from deepeyes_patch.request import frames


def metadata(frames: int, total: int = 16, fps: float = 4.0) -> dict[str, Any]:
    return {"fps": fps, "total_num_frames": total, "frames_indices": list(range(frames))}


def test_seconds_between_groups_follow_the_clip() -> None:
    """16 frames at 4 a second last four seconds; 8 of them make four groups of two."""
    assert video_times.seconds_per_grid(metadata(8), 2) == 1.0
    assert math.isclose(video_times.seconds_per_grid(metadata(6, 35, 10.0), 2), 3.5 / 3)


def test_times_of_groups_are_the_middle_of_their_frames() -> None:
    clip = {"fps": 4.0, "total_num_frames": 16, "frames_indices": [0, 2, 4, 6, 15]}
    assert video_times.group_times(clip, 2) == [0.25, 1.25, 3.75]
    assert video_times.group_times(clip, 1) == [0.0, 0.5, 1.0, 1.5, 3.75]


def test_times_travel_with_the_frames_and_stay_as_they_are() -> None:
    video = torch.zeros(8, 3, 2, 2)
    assert frames.noted(video) is None
    frames.note(video, metadata(8))
    copy = frames.noted(video)
    assert copy == metadata(8)
    copy["frames_indices"].append(99)
    copy["fps"] = 1.0
    assert frames.noted(video) == metadata(8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (metadata(7), "8 frames of a video were taken, and the times of 7 are known"),
        ({**metadata(8), "fps": None}, "times of a video's frames are unknown"),
        ({**metadata(8), "fps": 0.0}, "times of a video's frames are unknown"),
        ({**metadata(8), "fps": float("nan")}, "frames are unknown: .*16 frames at nan fps"),
        ({**metadata(8), "total_num_frames": 0}, "frames are unknown: .*0 frames at 4 fps"),
        ({**metadata(8), "frames_indices": ["x"] * 8}, "times of a video's frames are unknown"),
        ({"fps": 4.0, "total_num_frames": 16}, "times of a video's frames are unknown"),
    ],
)
def test_metadata_of_other_frames_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedRequest, match=message) as refusal:
        frames.note(torch.zeros(8, 3, 2, 2), given)
    assert refusal.value.reason == "video"
