"""What came with a request as images and videos: used as it is, or refused. Nothing else comes out.

Before the rebuild, much of what is refused here got as far as SGLang's or NumPy's code. Its exception came
out as HTTP 400 with "an image could not be loaded: 'NoneType' object has no attribute ...", or as HTTP 500,
and was not counted.
"""

from __future__ import annotations

import enum
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from deepeyes_patch import RefusedRequest
from deepeyes_patch.ids.spans import Span
from deepeyes_patch.request import grids, item_checks, media, preprocessed
from deepeyes_patch.request.item_checks import Limits
from deepeyes_patch.request.preprocessed import IMAGES, VIDEOS, is_preprocessed

MERGE = 2
LIMITS = Limits(MERGE)
INF, NAN = math.inf, math.nan

# --- grids ---------------------------------------------------------------------------------------------

sizes = st.one_of(
    st.integers(1, 64),
    st.integers(-2, 2),
    st.floats(width=32),
    st.sampled_from([0, -1, 2**31, 2**63, 10**30, INF, -INF, NAN, 1.5, 4.0, True, None, "4", b"4", [], 1j]),
)
tables = st.one_of(
    st.none(),
    sizes,
    st.lists(sizes, max_size=4),
    st.lists(st.lists(sizes, min_size=3, max_size=3), max_size=3),
    st.lists(st.lists(sizes, max_size=4), max_size=3),
    st.lists(st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), max_size=2), max_size=2),
)


@given(tables)
@example([[1, 4, INF]])
@example([[1, 4, NAN]])
@example([[0, 4, 4]])
@example([[1, -4, 4]])
@example([[1, 4.5, 4]])
@example([[1, 2**70, 4]])
@example([[1, 1, 1], [1, 1.0, 10**30]])
def test_grids_are_read_as_they_are_or_refused(table: Any) -> None:
    """``inf`` was an OverflowError, HTTP 500."""
    try:
        rows = grids.rows(table)
    except RefusedRequest:
        return
    if not rows:  # torch reads lists that begin with an empty one as nothing
        assert table in (None, []) or table[0] == [] or table[0][0] == []
        return
    assert [size for row in rows for size in row] == numpy.array(table, dtype=object).flatten().tolist()
    assert all(type(size) is int and size >= 1 for row in rows for size in row)
    assert all(len(row) == 3 for row in rows)


DTYPES = [torch.int32, torch.int64, torch.int16, torch.uint8, torch.float32, torch.float64, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype_that_holds_whole_numbers(dtype: torch.dtype) -> None:
    expected = [(1, 4, 6), (2, 8, 2)]
    table = torch.tensor(expected, dtype=dtype)
    assert grids.rows(table) == expected
    assert grids.rows(table.numpy()) == expected
    assert grids.rows(list(table)) == expected
    assert grids.rows(table[0]) == expected[:1]
    assert all(type(size) is int for row in grids.rows(table) for size in row)


@pytest.mark.parametrize(
    "table",
    [
        torch.tensor([[1.0, INF, 4.0]]),
        torch.tensor([[1.0, NAN, 4.0]]),
        torch.tensor([[1.0, 4.5, 4.0]]),
        torch.tensor([[1, 0, 4]]),
        torch.tensor([[1, 4]]),
        torch.ones(1, 1, 3),
        torch.tensor(3),
        [torch.tensor([1, 4, 4]), torch.tensor([1, 4])],
        [torch.tensor([1, 4, 4]), None],
        numpy.array([["1", "4", "4"]]),
        numpy.array([[1, 4, None]], dtype=object),
        torch.tensor([[1 + 1j, 4, 4]]),
        "1x4x4",
        {"t": 1},
        object(),
    ],
    ids=lambda table: str(table)[:40],
)
def test_what_is_no_grid(table: Any) -> None:
    with pytest.raises(RefusedRequest, match=r"must be \(t, h, w\)") as refusal:
        grids.rows(table)
    assert refusal.value.reason == "media"
    assert len(str(refusal.value)) < 700, "megabytes could have come"


def test_no_grids() -> None:
    assert grids.rows(None) == grids.rows([]) == grids.rows(torch.empty(0, 3)) == []


# --- preprocessed items -----------------------------------------------------------------------------------


class Format(enum.Enum):
    """As SGLang's own enumeration, which it takes beside the names."""

    PROCESSOR_OUTPUT = enum.auto()
    PRECOMPUTED_EMBEDDING = enum.auto()


def item(**changes: Any) -> dict[str, Any]:
    """An item as the HF processor makes it: 16 patches, 4 tokens."""
    made = {
        "format": "processor_output",
        "pixel_values": torch.zeros(16, 8),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }
    return {name: value for name, value in {**made, **changes}.items() if value is not ...}


EMBEDDED = {"format": "precomputed_embedding", "pixel_values": ..., "feature": torch.zeros(4, 8)}


@pytest.mark.parametrize(
    "came",
    [
        item(),
        item(format=Format.PROCESSOR_OUTPUT),
        item(format="PROCESSOR_OUTPUT"),
        item(pixel_values=numpy.zeros((16, 8))),
        item(**EMBEDDED),
        item(**{**EMBEDDED, "format": Format.PRECOMPUTED_EMBEDDING}),
        item(pixel_values=..., precomputed_embeddings=torch.zeros(4, 8)),
        item(modality="IMAGE", offsets=[(1, 4)], hash=5, pad_value=7),
        item(modality="image", offsets=torch.tensor([[1, 4]]), hash=None, pad_value=None),
        item(image_grid_thw=[1, 4, 4]),
        item(image_grid_thw=[[1, 2, 4], [2, 2, 2]], pixel_values=torch.zeros(16, 8)),
    ],
    ids=range(11),
)
def test_items_that_pass(came: dict[str, Any]) -> None:
    before = dict(came)
    (checked,) = media.checked_images([came], LIMITS)
    assert is_preprocessed(checked)
    assert checked is not came
    assert came.keys() == before.keys()
    assert all(came[name] is value for name, value in before.items())
    assert torch.is_tensor(checked["image_grid_thw"])
    assert checked["image_grid_thw"].dtype == torch.int64
    assert sum(t * h * w for t, h, w in checked["image_grid_thw"].tolist()) == 16
    assert checked["format"] == ("precomputed_embedding" if "feature" in came else "processor_output")
    rest = {name: value for name, value in checked.items() if name not in ("image_grid_thw", "format")}
    assert all(value is came[name] for name, value in rest.items())


REFUSED = {
    "no grids": (item(image_grid_thw=...), "holds no image_grid_thw"),
    "grids that are None": (item(image_grid_thw=None), "holds no image_grid_thw"),
    "an empty item": ({}, "holds no image_grid_thw"),
    "a grid that cannot be merged": (
        item(image_grid_thw=[[1, 3, 4]], pixel_values=torch.zeros(12, 8)),
        "must be multiples of spatial_merge_size 2",
    ),
    "an embedding of a row of patches": (
        item(**{**EMBEDDED, "feature": torch.zeros(1, 8), "image_grid_thw": [[1, 1, 4]]}),
        "must be multiples of spatial_merge_size 2",
    ),
    "an infinite grid": (item(image_grid_thw=[[1, INF, 4]]), r"must be \(t, h, w\)"),
    "another number of patches": (
        item(pixel_values=torch.zeros(15, 8)),
        r"pixel_values of shape \[15, 8\], and its image_grid_thw demands 16 rows",
    ),
    "another number of tokens": (
        item(**{**EMBEDDED, "feature": torch.zeros(16, 8)}),
        r"feature of shape \[16, 8\], and its image_grid_thw demands 4 rows",
    ),
    "features without a dimension": (
        item(pixel_values=torch.tensor(3.0)),
        r"pixel_values of shape \[\], and its image_grid_thw demands 16 rows",
    ),
    "no features": (
        item(pixel_values=...),
        "of format processor_output, holds no pixel_values or precomputed_embeddings",
    ),
    "features that are None": (item(pixel_values=None), "holds no pixel_values or precomputed_embeddings"),
    "features of the other format": (
        item(**{**EMBEDDED, "format": "processor_output"}),
        "of format processor_output, holds no pixel_values or precomputed_embeddings",
    ),
    "features of one dimension": (
        item(pixel_values=torch.zeros(16)),
        r"pixel_values of shape \[16\], and its image_grid_thw demands 16 rows",
    ),
    "no format": (item(format=...), "is of format unknown, and SGLang knows processor_output and"),
    "another format": (item(format="jpeg"), "is of format jpeg, and SGLang knows processor_output and"),
    "a format that is no word": (item(format=[1]), r"is of format \[1\], and SGLang knows"),
    "features under another key": (
        item(**{**EMBEDDED, "feature": ..., "pixel_values": torch.zeros(16, 8)}),
        "of format precomputed_embedding, holds no feature; its keys are",
    ),
    "features in a list": (
        item(pixel_values=[[0.0] * 8] * 16),
        "holds pixel_values of type list, and it must be a tensor or an array",
    ),
    "features in base64": (
        item(pixel_values="AAAA"),
        "holds pixel_values of type str, and it must be a tensor or an array",
    ),
    "offsets that are no pairs": (item(offsets=[1, 2, 3]), r"holds offsets of shape \[3\]; leave them out"),
    "offsets that are no numbers": (item(offsets="1-4"), "holds offsets that are no pairs; leave them out"),
    "fractional offsets": (item(offsets=[[1.0, 4.0]]), "holds offsets of shape"),
    "offsets of no image": (item(offsets=[]), r"holds offsets of shape \[0\]"),
    "offsets of two images": (item(offsets=[(1, 4), (7, 10)]), r"holds offsets of shape \[2, 2\]"),
    "a fractional hash": (item(hash=1.5), "holds hash of type float; leave them out"),
    "the grid of a video": (item(video_grid_thw=[[1, 4, 4]]), "holds video_grid_thw; leave them out"),
    "features of a sound": (item(input_features=None), "holds input_features; leave them out"),
    "several images": (item(modality="MULTI_IMAGES"), "holds modality multi_images; leave them out"),
    "a hash that is no number": (item(hash=[1]), "holds hash of type list; leave them out"),
    "a pad value that is no number": (item(pad_value="x"), "holds pad_value of type str; leave them out"),
    "another modality": (item(modality="VIDEO"), "holds modality video; leave them out"),
    "whole numbers as features": (item(pixel_values=torch.zeros(16, 4).long()), "floating-point numbers"),
    "complex numbers as features": (item(pixel_values=torch.zeros(16, 4) * 1j), "floating-point numbers"),
    "text as features": (item(pixel_values=numpy.zeros((16, 4), "U1")), "floating-point numbers"),
    "several odd things": (
        item(hash={}, pad_value=object()),
        "holds hash of type dict, pad_value of type object; leave",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_items_that_are_refused(name: str) -> None:
    came, message = REFUSED[name]
    with pytest.raises(RefusedRequest, match=message) as refusal:
        media.checked_images([came], LIMITS)
    assert refusal.value.reason == "media"


@pytest.mark.parametrize(
    "came",
    [
        item(),
        item(format=...),
        item(format="jpeg"),
        item(modality="MULTI_IMAGES"),
        item(pixel_values=..., precomputed_embeddings=torch.zeros(4, 8)),
    ],
    ids=range(5),
)
def test_where_formats_do_not_matter_any_item_with_features_passes(came: dict[str, Any]) -> None:
    (checked,) = media.checked_images([came], Limits(MERGE, formats_matter=False))
    assert checked.get("format") == came.get("format")


def test_where_formats_do_not_matter_features_have_one_key() -> None:
    """To 0.5.4 SGLang takes any dict for output of the HF processor, and drops ``feature``."""
    with pytest.raises(RefusedRequest, match="holds no pixel_values or precomputed_embeddings"):
        media.checked_images([item(**EMBEDDED)], Limits(MERGE, formats_matter=False))


def test_offsets_are_those_of_the_ids() -> None:
    spans = [Span(5, 4), Span(20, 4), Span(30, 4)]
    right = [(5, 8), (20, 23), (30, 33)]
    two = item(image_grid_thw=[[1, 4, 4]] * 2, pixel_values=torch.zeros(32, 8))
    for first, second in (
        (right[:2], right[2:]),
        (None, right[2:]),
        (torch.tensor(right[:2]), numpy.array(right[2:])),
    ):
        items = media.checked_images([{**two, "offsets": first}, item(offsets=second)], LIMITS)
        item_checks.refuse_other_offsets(IMAGES, items, spans)
    for wrong in ([(30, 34)], [(29, 32)], [(5, 8)], [(10**9, 10**10)], [(-1, 3)]):
        items = media.checked_images([two, item(offsets=wrong)], LIMITS)
        with pytest.raises(
            RefusedRequest, match=r"item 1 .* offsets that are not those.*\[\(30, 33\)\]"
        ) as no:
            item_checks.refuse_other_offsets(IMAGES, items, spans)
        assert no.value.reason == "media"


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 4), max_size=3),
    st.sampled_from(
        [torch.zeros(16, 8), torch.zeros(4, 8), torch.zeros(0), torch.tensor([NAN]), numpy.zeros(4), object()]
    ),
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *("format", "pixel_values", "feature", "precomputed_embeddings", "image_grid_thw"),
                *("offsets", "hash", "pad_value", "modality"),
            ]
        ),
        anything,
        max_size=3,
    )
)
def test_any_item_passes_or_is_refused(changes: dict[str, Any]) -> None:
    try:
        (checked,) = media.checked_images([{**item(), **changes}], LIMITS)
    except RefusedRequest:
        return
    held = [checked[name] for name in IMAGES.features if checked.get(name) is not None]
    assert held
    tokens = sum(t * (h // MERGE) * (w // MERGE) for t, h, w in checked["image_grid_thw"].tolist())
    assert all(len(features) in (tokens, tokens * MERGE**2) for features in held)


# --- raw images and videos --------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [[], ["a.png", b"bytes", object()]])
def test_raw_images_pass_unlooked_at(images: Any) -> None:
    checked = media.checked_images(images, LIMITS)
    assert checked == images
    assert checked is not images


def test_a_dict_with_a_url_is_the_url() -> None:
    """0.5.10.post1 and 0.5.12.post1 take no such dict."""
    assert media.checked_images([{"url": "b", "detail": "high"}], LIMITS) == ["b"]


@pytest.mark.parametrize(
    ("begin", "kind"),
    [("/9j/4AAQ", "jpeg"), ("iVBORw0KGgoAAAA", "png"), ("R0lGODlh", "gif"), ("UklGRg", "webp")],
)
def test_bare_base64_of_an_image_is_a_data_url(
    begin: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang takes the first for a path, from 0.5.12.post1 on."""
    for text in (begin, begin + "A" * 100_000):
        assert media.checked_images([text], LIMITS) == [f"data:image/{kind};base64,{text}"]
    monkeypatch.chdir(tmp_path)
    if "/" not in begin:
        (tmp_path / begin).touch()
        assert media.checked_images([begin], LIMITS) == [begin], "a file of this name"


@pytest.mark.parametrize("image", [None, [], ("a.png",), 3, 1.5, True])
def test_what_is_no_image(image: Any) -> None:
    with pytest.raises(RefusedRequest, match=r"image_data\[1\] is .*, which is no image") as refusal:
        media.checked_images(["a.png", image], LIMITS)
    assert refusal.value.reason == "media"


def test_preprocessed_beside_raw_images() -> None:
    images = media.checked_images(["a.png", item(), "b.png"], LIMITS)
    media.refuse_mixed_embeddings(images, [])
    media.refuse_mixed_embeddings([item(**EMBEDDED)], [])
    with pytest.raises(RefusedRequest, match=r"1 item\(s\) with embeddings beside 3 raw image\(s\)") as no:
        media.refuse_mixed_embeddings(["a.png", item(**EMBEDDED), "b.png"], ["a.mp4"])
    assert no.value.reason == "unsupported"


@pytest.mark.parametrize(
    ("video", "message"),
    [
        ({"url": "a.mp4"}, "is of type dict, and no clip"),
        (torch.zeros(2, 3, 4, 4), "is of type Tensor, and no clip"),
        (3, "is of type int, and no clip"),
        ([["frame"]], "is of type list, and no clip"),
    ],
)
def test_what_is_no_clip(video: Any, message: str) -> None:
    with pytest.raises(RefusedRequest, match=message) as refusal:
        media.checked_videos([video], LIMITS)
    assert refusal.value.reason == "unsupported"


def test_clips_pass_unlooked_at() -> None:
    clips = ["a.mp4", b"bytes"]
    assert media.checked_videos(clips, LIMITS) == clips


@pytest.mark.parametrize("data", [None, [], [None], ()])
def test_no_data_of_another_modality(data: Any) -> None:
    media.refuse_modalities(audio=data)


@pytest.mark.parametrize("data", ["a.wav", ["a.wav"], [None, "a.wav"], torch.zeros(3)])
def test_data_of_another_modality(data: Any) -> None:
    with pytest.raises(RefusedRequest, match="audio data with input_ids") as refusal:
        media.refuse_modalities(audio=data)
    assert refusal.value.reason == "unsupported"


def test_pixels_of_another_model_are_refused() -> None:
    """Patches of another width ended SGLang's scheduler, and the whole server with it."""
    for width, right in ((4, True), (5, False), (0, False)):
        came = item(pixel_values=torch.zeros(16, width))
        if right:
            media.checked_images([came], Limits(MERGE, patch_width=4))
        else:
            with pytest.raises(RefusedRequest, match=rf"shape \[16, {width}\].*patches have 4 values each"):
                media.checked_images([came], Limits(MERGE, patch_width=4))


# --- preprocessed videos ----------------------------------------------------------------------------------


def video(**changes: Any) -> dict[str, Any]:
    """Two groups of frames of 4 x 4 patches."""
    right = {
        "format": "processor_output",
        "pixel_values_videos": torch.zeros(32, 8),
        "video_grid_thw": [[2, 4, 4]],
        "second_per_grid_ts": [1.25],
    }
    return {name: value for name, value in {**right, **changes}.items() if value is not ...}


def test_a_preprocessed_video() -> None:
    (checked,) = media.checked_videos([video()], Limits(MERGE, timed=True))
    assert checked["video_grid_thw"].tolist() == [[2, 4, 4]]
    assert preprocessed.seconds_of([checked, "a.mp4"]) == [1.25, None]
    assert preprocessed.grids_of(VIDEOS, ["a.mp4", checked]) == [None, (2, 4, 4)]
    for seconds in ([1.25], ...):
        (checked,) = media.checked_videos([video(second_per_grid_ts=seconds)], LIMITS)
        assert preprocessed.seconds_of([checked]) == [None], "Qwen3-VL has the times in its text"


@pytest.mark.parametrize("seconds", [..., None, [], [1.0, 2.0], [0.0], [-1.0], [INF], [NAN], "1", {}])
def test_seconds_that_place_no_video(seconds: Any) -> None:
    with pytest.raises(RefusedRequest, match=r"holds second_per_grid_ts .*of its 1 video") as refusal:
        media.checked_videos([video(second_per_grid_ts=seconds)], Limits(MERGE, timed=True))
    assert refusal.value.reason == "media"


def test_an_item_of_both_is_two_items() -> None:
    both = {**item(), **video(), "offsets": None}
    images, videos = preprocessed.parted(["a.png", both], ["b.mp4"])
    assert images[0] == "a.png"
    assert images[1].keys() == {"format", "pixel_values", "image_grid_thw", "offsets"}
    assert videos[0].keys() == {
        *("format", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts", "offsets")
    }
    assert videos[1] == "b.mp4"
    images, videos = preprocessed.parted([video()], [item()])
    assert (list(images[0]), list(videos[0])) == (list(item()), list(video()))


def test_preprocessed_and_raw_in_order() -> None:
    first, last = torch.full((16, 8), 1.0), torch.full((16, 8), 3.0)
    items = media.checked_images([item(pixel_values=first), "b.png", item(pixel_values=last)], LIMITS)
    values, rows = preprocessed.merged(IMAGES, items, torch.full((8, 8), 2.0), torch.tensor([[1, 2, 4]]))
    assert rows.tolist() == [[1, 4, 4], [1, 2, 4], [1, 4, 4]]
    assert values[:, 0].tolist() == [1.0] * 16 + [2.0] * 8 + [3.0] * 16


def test_items_that_can_be_joined() -> None:
    two = media.checked_videos([video(), video(second_per_grid_ts=[0.5])], Limits(MERGE, timed=True))
    (one,) = preprocessed.joined(VIDEOS, two)
    assert one["video_grid_thw"].tolist() == [[2, 4, 4]] * 2
    assert one["second_per_grid_ts"].tolist() == [1.25, 0.5]
    assert one["pixel_values_videos"].shape == (64, 8)
    hashed = media.checked_videos([video(hash=1), video(hash=2)], LIMITS)
    assert preprocessed.joined(VIDEOS, hashed) == hashed
