"""M-RoPE positions by definition, beside examples worked out by hand; and the times of frames."""

from __future__ import annotations

import math

import pytest
import torch

from deepeyes_patch.ids.positions import Medium, positions, times
from deepeyes_patch.request import frames as sampling

MERGE = 2


def test_text_alone_counts_up() -> None:
    assert positions(3, [], MERGE).tolist() == [[0, 1, 2]] * 3
    assert positions(0, [], MERGE).shape == (3, 0)


def test_an_image_between_text() -> None:
    """2 x 3 tokens after two of text: text goes on one past the widest axis."""
    image = Medium(2, 7, torch.arange(1), 4, 6)
    assert positions(10, [image], MERGE).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]


def test_a_video_whose_times_outgrow_its_grid() -> None:
    """Three groups of one token, four positions apart: text goes on one past the last time."""
    video = Medium(1, 3, torch.tensor([0, 4, 8]), 2, 2)
    assert positions(5, [video], MERGE).tolist() == [[0, 1, 5, 9, 10], [0, 1, 1, 1, 10], [0, 1, 1, 1, 10]]


def test_adjacent_media() -> None:
    media = [Medium(0, 1, torch.arange(1), 2, 4), Medium(2, 2, torch.arange(1), 2, 2)]
    assert positions(3, media, MERGE).tolist() == [[0, 0, 2], [0, 0, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1.0, [0, 2, 4, 6]), (7 / 6, [0, 2, 4, 7]), (0.25, [0, 0, 1, 1]), (2 / 24, [0, 0, 0, 0])],
)
def test_times_are_rounded_down(seconds: float, expected: list[int]) -> None:
    found = times(4, seconds, 2)
    assert found.tolist() == expected
    assert found.dtype == torch.int64


def metadata(frames: int, total: int = 16, fps: float = 4.0) -> dict[str, object]:
    return {"fps": fps, "total_num_frames": total, "frames_indices": list(range(frames))}


def test_seconds_between_groups_follow_the_clip() -> None:
    """16 frames at 4 a second last four seconds; 8 of them make four groups of two."""
    assert sampling.seconds_per_grid(metadata(8), 2) == 1.0
    assert math.isclose(sampling.seconds_per_grid(metadata(6, 35, 10.0), 2), 3.5 / 3)


def test_times_of_groups_are_the_middle_of_their_frames() -> None:
    given = {"fps": 4.0, "total_num_frames": 16, "frames_indices": [0, 2, 4, 6, 15]}
    assert sampling.group_times(given, 2) == [0.25, 1.25, 3.75]
    assert sampling.group_times(given, 1) == [0.0, 0.5, 1.0, 1.5, 3.75]


def test_times_travel_with_the_frames_and_stay_as_they_are() -> None:
    video = torch.zeros(8, 3, 2, 2)
    assert sampling.noted(video) is None
    sampling.note(video, metadata(8))
    copy = sampling.noted(video)
    assert copy == metadata(8)
    copy["frames_indices"].append(99)
    copy["fps"] = 1.0
    assert sampling.noted(video) == metadata(8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (metadata(7), "8 frames of a video were taken, and the times of 7 are known"),
        ({**metadata(8), "fps": None}, "times of a video's frames are unknown"),
        ({**metadata(8), "fps": 0.0}, "times of a video's frames are unknown"),
        ({**metadata(8), "fps": float("nan")}, "8 frames of a video were taken"),
        ({"fps": 4.0, "total_num_frames": 16}, "times of a video's frames are unknown"),
    ],
)
def test_metadata_of_other_frames_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampling.note(torch.zeros(8, 3, 2, 2), given)
