"""What is refused of the ids that a class handles that is not ours to serve."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepeyes_patch import RefusedRequest
from deepeyes_patch.ids import spans
from deepeyes_patch.request.unserved import UnservedRequest

IMAGE = 7
TEXT = st.lists(st.sampled_from([1, 2, 3]), max_size=4)


def request(ids: list[int]) -> UnservedRequest:
    return UnservedRequest(ids, IMAGE, "SomeProcessor")


@given(st.lists(st.sampled_from([1, IMAGE])))
def test_runs_are_maximal_and_all_there(ids: list[int]) -> None:
    runs = spans.find_runs(ids, IMAGE)
    inside = {i for start, length in runs for i in range(start, start + length)}
    assert inside == {i for i, token in enumerate(ids) if token == IMAGE}
    assert all(a.start + a.length < b.start for a, b in pairwise(runs))


def test_one_placeholder_for_each_image_passes() -> None:
    request([1, IMAGE, 2, IMAGE]).check_placeholders(2)
    with pytest.raises(
        RefusedRequest, match=r"3 image placeholders \(token 7\) from position 1 on.*SomeProcessor"
    ):
        request([1, IMAGE, IMAGE, IMAGE, 2]).check_placeholders(1)
    with pytest.raises(RefusedRequest, match=r"hold 1 image placeholder.*2 image"):
        request([1, IMAGE]).check_placeholders(2)


@given(st.lists(st.tuples(TEXT.filter(bool), st.integers(1, 4), st.booleans()), max_size=4), TEXT)
def test_the_callers_ids_with_images_grown_pass(
    images: list[tuple[list[int], int, bool]], tail: list[int]
) -> None:
    sent: list[int] = []
    used: list[int] = []
    offsets = []
    for text, count, short in images:
        sent += [*text, *[IMAGE] * (1 if short else count)]
        offsets.append((len(used) + len(text), len(used) + len(text) + count - 1))
        used += [*text, *[IMAGE] * count]
    sent, used = sent + tail, used + tail
    checked = request(sent)
    checked.check_result(used, offsets[::-1])
    for wrong in ([*used, 1], used[1:] if used else [1], [*used, IMAGE]):
        if wrong != used:
            with pytest.raises(RefusedRequest, match=r"are not the caller's|placed images"):
                checked.check_result(wrong, offsets)
    if offsets:
        with pytest.raises(RefusedRequest, match="placed images"):
            checked.check_result(used, offsets[1:])


def test_an_expanded_image_must_keep_its_length() -> None:
    with pytest.raises(RefusedRequest, match="4 input_ids into 5 that are not the caller's"):
        request([1, IMAGE, IMAGE, 2]).check_result([1, IMAGE, IMAGE, IMAGE, 2], [(1, 3)])
