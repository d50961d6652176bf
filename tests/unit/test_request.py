"""One pre-tokenized request beside its images' grids: what is served, and what every refusal says."""

from __future__ import annotations

from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepeyes_patch import RefusedRequest, errors
from deepeyes_patch.ids.request import GridTHW, PretokenizedRequest, Resolution
from deepeyes_patch.ids.tokens import VisionTokens

P, VS, VE, V = 90, 91, 92, 93
PAD = 0
TOKENS = VisionTokens(P, VS, VE, foreign={"video": V})
MERGE = 2
VOCABULARY = 100

# (t, h, w) in patches -> tokens at a merge size of 2
GRID_4: GridTHW = (1, 4, 4)
GRID_6: GridTHW = (1, 4, 6)
GRID_81: GridTHW = (1, 18, 18)
GRID_1: GridTHW = (1, 2, 2)


def image(count: int) -> list[int]:
    return [VS, *[P] * count, VE]


def bounds() -> str:
    return "min_pixels 3136, max_pixels 12845056"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 100], "100 at position 1, and the model has embeddings for 0 to 99"),
        ([1, 2, -7], "-7 at position 2"),
        ([10**7], "10000000 at position 0"),
        ([2**70], "flat sequence of token ids"),
        ([2**63], "flat sequence of token ids"),  # an unsigned number of 64 bits could hold these two
        ([1, 2**64 - 1], "flat sequence of token ids"),
        ([-(2**63)], "-9223372036854775808 at position 0"),
        ([1.5], "flat sequence of token ids"),
        ([1, 2.0], "flat sequence of token ids"),
        ([1, numpy.float64(2)], "flat sequence of token ids"),
        ([1, Fraction(2)], "flat sequence of token ids"),
        (numpy.array([1.0]), "flat sequence of token ids"),
        ([None], "flat sequence of token ids"),
        ([[1, 2]], "flat sequence of token ids"),
        (["1"], "flat sequence of token ids"),
        (bytes(8), "flat sequence of token ids: they are bytes"),  # `array` reads it as one id
        (bytearray(16), "flat sequence of token ids: they are bytearray"),
        (bytes(7), "flat sequence of token ids: they are bytes"),
    ],
)
def test_what_is_no_token_id(ids: list[int], message: str) -> None:
    """SGLang clamps ids to the vocabulary, so others would be served in silence."""
    with pytest.raises(RefusedRequest, match=message):
        PretokenizedRequest(ids, TOKENS, vocab_size=VOCABULARY, image_count=0)


def test_ids_are_plain_ints_whatever_they_came_as() -> None:
    for ids in ([1, 2], (1, 2), range(1, 3), [numpy.int64(1), 2], [1, numpy.int32(2)], numpy.array([1, 2])):
        request = PretokenizedRequest(ids, TOKENS, vocab_size=VOCABULARY, image_count=0)
        assert request.ids == [1, 2]
        assert {type(token) for token in request.ids} == {int}


def resolve(
    ids: list[int],
    grids: list[GridTHW],
    *,
    image_count: int | None = None,
    expanded_only: bool = False,
) -> Resolution:
    count = len(grids) if image_count is None else image_count
    expanded = range(count) if expanded_only else ()
    request = PretokenizedRequest(ids, TOKENS, vocab_size=VOCABULARY, image_count=count, expanded=expanded)
    resolution = request.resolve(grids, MERGE, bounds)
    assert resolution.values.dtype == numpy.int64
    assert resolution.values.tolist() == resolution.ids
    return resolution


# --- served -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "grids", "expected"),
    [
        pytest.param([1, *image(81), 2], [GRID_81], [1, *image(81), 2], id="expanded"),
        pytest.param([1, *image(1), 2], [GRID_81], [1, *image(81), 2], id="one placeholder"),
        pytest.param(
            [*image(4), 5, *image(1)], [GRID_4, GRID_6], [*image(4), 5, *image(6)], id="history expanded"
        ),
        pytest.param(
            [*image(1), 5, *image(6)], [GRID_4, GRID_6], [*image(4), 5, *image(6)], id="history short"
        ),
        pytest.param([*image(4), *image(6)], [GRID_4, GRID_6], [*image(4), *image(6)], id="adjacent"),
        pytest.param([*image(1), *image(4)], [GRID_1, GRID_4], [*image(1), *image(4)], id="M = 1"),
        pytest.param(
            [PAD, PAD, PAD, 1, *image(4)], [GRID_4], [PAD, PAD, PAD, 1, *image(4)], id="left-padded"
        ),
        pytest.param([VS, 1, *image(4), VE], [GRID_4], [VS, 1, *image(4), VE], id="lone markers"),
        pytest.param([1, 2, 3], [], [1, 2, 3], id="no image"),
        pytest.param([], [], [], id="empty"),
    ],
)
def test_served(ids: list[int], grids: list[GridTHW], expected: list[int]) -> None:
    before = list(ids)
    resolution = resolve(ids, grids)
    assert resolution.ids == expected
    assert resolution.grids == grids
    assert [expected[first : last + 1] for first, last in resolution.offsets] == [
        [P] * (t * h * w // MERGE**2) for t, h, w in grids
    ]
    for first, last in resolution.offsets:
        assert (expected[first - 1], expected[last + 1]) == (VS, VE)
    assert ids == before


def test_the_merge_size_is_not_a_constant() -> None:
    request = PretokenizedRequest(image(1), TOKENS, vocab_size=VOCABULARY, image_count=1)
    assert request.resolve([(1, 6, 6)], 3).ids == image(4)
    assert request.resolve([(1, 6, 6)], 1).ids == image(36)


def test_frames_count() -> None:
    assert resolve(image(8), [(2, 4, 4)]).ids == image(8)


def test_collapsed_is_one_placeholder_an_image() -> None:
    request = PretokenizedRequest([1, *image(4), *image(1), 2], TOKENS, vocab_size=VOCABULARY, image_count=2)
    assert request.collapsed() == [1, *image(1), *image(1), 2]
    assert request.ids == [1, *image(4), *image(1), 2]


def test_the_callers_list_may_change_afterwards() -> None:
    ids = [1, *image(4)]
    request = PretokenizedRequest(ids, TOKENS, vocab_size=VOCABULARY, image_count=1)
    ids.clear()
    assert request.resolve([GRID_4], MERGE).ids == [1, *image(4)]


def test_the_bounds_are_not_described_for_a_request_that_is_served() -> None:
    def never() -> str:
        raise AssertionError("called")

    PretokenizedRequest(image(4), TOKENS, vocab_size=VOCABULARY, image_count=1).resolve(
        [GRID_4], MERGE, never
    )


any_grid = st.tuples(st.integers(1, 2), st.integers(1, 12), st.integers(1, 12))
grid_rows = any_grid.map(lambda grid: (grid[0], grid[1] * MERGE, grid[2] * MERGE))


@given(st.lists(st.tuples(grid_rows, st.booleans(), st.lists(st.integers(0, 9), max_size=4)), max_size=5))
def test_any_mix_of_short_and_expanded_spans_is_served(
    turns: list[tuple[GridTHW, bool, list[int]]],
) -> None:
    sent: list[int] = []
    served: list[int] = []
    for (t, h, w), short, text in turns:
        count = t * h * w // MERGE**2
        sent += [*image(1 if short else count), *text]
        served += [*image(count), *text]
    resolution = resolve(sent, [grid for grid, _, _ in turns])
    assert resolution.ids == served
    assert [i for first, last in resolution.offsets for i in range(first, last + 1)] == [
        i for i, token in enumerate(served) if token == P
    ]


# --- refused ----------------------------------------------------------------------------------------

# ids, grids; then what the message must name: image, count sent, count made, grid, position
COUNT_REFUSALS = {
    "one pad too few": ([*image(80)], [GRID_81], 0, 80, 81, "1x18x18", 1),
    "one pad too many": ([*image(82)], [GRID_81], 0, 82, 81, "1x18x18", 1),
    "swapped": ([*image(6), 5, *image(4)], [GRID_4, GRID_6], 0, 6, 4, "1x4x4", 1),
    "the second of three": (
        [*image(4), 1, *image(7), *image(6)],
        [GRID_4, GRID_6, GRID_6],
        1,
        7,
        6,
        "1x4x6",
        8,
    ),
    "M = 1, two sent": ([*image(2)], [GRID_1], 0, 2, 1, "1x2x2", 1),
}


@pytest.mark.parametrize(
    ("ids", "grids", "index", "sent", "made", "grid", "position"),
    COUNT_REFUSALS.values(),
    ids=COUNT_REFUSALS,
)
def test_a_wrong_count_is_refused_and_everything_named(
    ids: list[int], grids: list[GridTHW], index: int, sent: int, made: int, grid: str, position: int
) -> None:
    with pytest.raises(RefusedRequest, match="image") as refusal:
        resolve(ids, grids)
    message = str(refusal.value)
    assert message.startswith(f"{errors.REFUSED}image {index} of {len(grids)}:")
    assert f"hold {sent} image placeholders" in message
    assert f"from position {position} on" in message
    assert f"makes {made} " in message
    assert f"grid_thw {grid}" in message
    assert f"spatial_merge_size {MERGE}" in message
    assert bounds() in message
    assert f"Send {made} or a single one" in message


def test_the_message_reads_well_without_bounds() -> None:
    with pytest.raises(RefusedRequest, match=r"spatial_merge_size 2\)\. Send 4 or a single one"):
        PretokenizedRequest(image(3), TOKENS, vocab_size=VOCABULARY, image_count=1).resolve([GRID_4], MERGE)


@pytest.mark.parametrize(
    ("ids", "images"),
    [
        pytest.param([*image(4)], 2, id="a span missing"),
        pytest.param([*image(4), *image(6)], 1, id="an image missing"),
        pytest.param([*image(4)], 0, id="image_data empty"),
        pytest.param([1, 2, 3], 1, id="spans missing"),
        pytest.param([*image(10)], 2, id="one run for two images"),
        pytest.param([*image(4), *image(1), *image(6)], 1, id="stale turns"),
    ],
)
def test_another_number_of_spans_than_of_images_is_refused(ids: list[int], images: int) -> None:
    spans = ids.count(VS)
    with pytest.raises(RefusedRequest, match=rf"hold {spans} image span\(s\).* {images} image\(s\) came"):
        PretokenizedRequest(ids, TOKENS, vocab_size=VOCABULARY, image_count=images)
    request = PretokenizedRequest(ids, TOKENS, vocab_size=VOCABULARY, image_count=spans)
    with pytest.raises(RefusedRequest, match=rf"hold {spans} image span\(s\).* {images} image\(s\) came"):
        request.resolve([GRID_4] * images, MERGE)


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        pytest.param([1, P, 2], "position 1", id="sampled by the model"),
        pytest.param([P, *image(4)], "position 0", id="stray before"),
        pytest.param([*image(4), P], "position 6", id="stray after"),
        pytest.param([*image(4), 3, *[P] * 9], "positions 7 to 15", id="a long run without VS and VE"),
        pytest.param([P, VS, *[P] * 4, VE], "position 0", id="glued before VS"),
        pytest.param([VS, *[P] * 4, 5], "positions 1 to 4", id="VE missing"),
        pytest.param([VS, *[P] * 4], "positions 1 to 4", id="VE missing at the end"),
        pytest.param([*[P] * 4, VE], "positions 0 to 3", id="VS missing"),
        pytest.param([*image(4), V], "video .* at position 6", id="video"),
        pytest.param([VS, V, VE, *image(4)], "video .* at position 1", id="video in a span of its own"),
    ],
)
def test_a_placeholder_with_nothing_behind_it_is_refused(ids: list[int], named: str) -> None:
    with pytest.raises(RefusedRequest, match=named) as refusal:
        PretokenizedRequest(ids, TOKENS, vocab_size=VOCABULARY, image_count=1)
    assert "prompt placeholders" not in str(refusal.value)


def test_a_preprocessed_image_is_expanded_already() -> None:
    assert resolve(image(4), [GRID_4], expanded_only=True).ids == image(4)
    assert resolve(image(1), [GRID_1], expanded_only=True).ids == image(1)
    with pytest.raises(RefusedRequest, match=r"hold 1 image placeholders .* makes 4 ") as refusal:
        resolve(image(1), [GRID_4], expanded_only=True)
    # No image processor of the server's had a part in it.
    assert "the image_grid_thw that came with it" in str(refusal.value)
    assert "server" not in str(refusal.value)
    assert "single" not in str(refusal.value)


@given(st.lists(st.integers(-(2**64), 2**64) | st.booleans() | st.sampled_from([0, 1, 99, 100]), max_size=6))
def test_any_numbers_are_taken_as_they_are_or_refused(ids: list[int]) -> None:
    """Whichever way they are read: a list is read as unsigned numbers first, a tuple never."""
    found = []
    for sent in (ids, tuple(ids)):
        try:
            found.append(PretokenizedRequest(sent, TOKENS, vocab_size=None, image_count=0).ids)
        except RefusedRequest as refusal:
            found.append([str(refusal)])
    assert found[0] == found[1]
    if all(0 <= token < 2**63 - 1 for token in ids) and not {P, VS, VE, V} & set(ids):
        assert found[0] == ids


@given(any_grid, st.integers(1, 4), st.booleans())
def test_a_grid_that_cannot_be_merged_is_refused(grid: GridTHW, merge: int, expanded_only: bool) -> None:
    """Before, t*h*w was divided with a remainder: numpy's message about a reshape, or HTTP 500, came out."""
    t, h, w = grid
    request = PretokenizedRequest(
        image(max(1, t * h * w // merge**2)),
        TOKENS,
        vocab_size=VOCABULARY,
        image_count=1,
        expanded=[0] * expanded_only,
    )
    if h % merge or w % merge:
        with pytest.raises(
            RefusedRequest, match=rf"grid_thw of {t}x{h}x{w}: .*spatial_merge_size {merge},"
        ) as no:
            request.resolve([grid], merge)
        assert no.value.reason == "media"
    else:
        assert request.resolve([grid], merge).ids.count(P) == t * (h // merge) * (w // merge)


@given(
    st.lists(st.sampled_from([1, 2, P, P, P, VS, VE, V]), max_size=25),
    st.lists(grid_rows | any_grid, max_size=3),
    st.booleans(),
)
def test_any_request_is_served_as_sent_or_refused_without_upstreams_signal(
    ids: list[int], grids: list[GridTHW], expanded_only: bool
) -> None:
    # 0.5.20 and later take a ValueError with these two words as a signal to fall back.
    refused = ""
    try:
        resolution = resolve(ids, grids, expanded_only=expanded_only)
    except RefusedRequest as refusal:
        refused = str(refusal)
    if refused:
        assert "prompt placeholders" not in refused
        assert "input_ids" in refused or "grid_thw" in refused
    else:
        assert all(h % MERGE == w % MERGE == 0 for _, h, w in grids)
        assert [t for t in resolution.ids if t != P] == [t for t in ids if t != P]
        assert len(resolution.ids) == len(ids) or not expanded_only
        assert len(resolution.offsets) == len(grids)
