"""M-RoPE positions by definition, beside examples worked out by hand."""

from __future__ import annotations

import numpy
import pytest
import torch

from deepeyes_patch.ids.positions import Medium, positions, times

MERGE = 2


def test_text_alone_counts_up() -> None:
    assert positions(3, [], MERGE).tolist() == [[0, 1, 2]] * 3
    assert positions(0, [], MERGE).shape == (3, 0)


def test_an_image_between_text() -> None:
    """2 x 3 tokens after two of text: text goes on one past the widest axis."""
    image = Medium(2, 7, numpy.arange(1), 4, 6)
    assert positions(10, [image], MERGE).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]


def test_a_video_whose_times_outgrow_its_grid() -> None:
    """Three groups of one token, four positions apart: text goes on one past the last time."""
    video = Medium(1, 3, numpy.array([0, 4, 8]), 2, 2)
    assert positions(5, [video], MERGE).tolist() == [[0, 1, 5, 9, 10], [0, 1, 1, 1, 10], [0, 1, 1, 1, 10]]


def test_a_video_of_several_tokens_a_group() -> None:
    """Two groups of 1 x 2 tokens: every axis repeats for each group."""
    video = Medium(0, 3, numpy.array([0, 1]), 2, 4)
    assert positions(5, [video], MERGE).tolist() == [[0, 0, 1, 1, 2], [0, 0, 0, 0, 2], [0, 1, 0, 1, 2]]


def test_adjacent_media() -> None:
    media = [Medium(0, 1, numpy.arange(1), 2, 4), Medium(2, 2, numpy.arange(1), 2, 2)]
    assert positions(3, media, MERGE).tolist() == [[0, 0, 2], [0, 0, 2], [0, 1, 2]]


def test_positions_are_int64() -> None:
    """As SGLang's are: `torch.equal` takes no other dtype for the same."""
    assert positions(3, [Medium(0, 1, numpy.arange(1), 2, 4)], MERGE).dtype == numpy.int64


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1.0, [0, 2, 4, 6]), (7 / 6, [0, 2, 4, 7]), (0.25, [0, 0, 1, 1]), (2 / 24, [0, 0, 0, 0])],
)
def test_times_are_rounded_down(seconds: float, expected: list[int]) -> None:
    found = times(4, seconds, 2)
    assert found.tolist() == expected
    assert found.dtype == numpy.int64


def test_times_are_those_of_torch_in_float32() -> None:
    """SGLang and transformers multiply float32 tensors; in float64 some products fall on the other side."""
    differ = 0
    for seconds in numpy.linspace(0.01, 5.0, 400):
        for per_second in (1, 2, 25):
            expected = (torch.arange(60).float() * float(seconds) * per_second).long()
            assert times(60, float(seconds), per_second).tolist() == expected.tolist(), seconds
            differ += ((torch.arange(60).double() * float(seconds) * per_second).long() != expected).sum()
    assert differ, "the examples would not tell float32 from float64"
