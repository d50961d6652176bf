"""The arithmetic on token ids, against an oracle that looks at one id at a time."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepeyes_patch import RefusedRequest
from deepeyes_patch.ids import spans
from deepeyes_patch.ids.spans import Span
from deepeyes_patch.ids.tokens import VisionTokens

# Not the real vocabulary's numbers: nothing may depend on those.
IMAGE, START, END, VIDEO, AUDIO = 7, 8, 9, 10, 11
TOKENS = VisionTokens(IMAGE, START, END, foreign={"video": VIDEO, "audio": AUDIO})
TEXT = st.sampled_from([0, 1, 2, 151655, -1, START, END])


def oracle(ids: list[int]) -> tuple[list[Span], int | None]:
    """The spans up to the first wrong run, and where that run starts."""
    found: list[Span] = []
    at = 0
    while at < len(ids):
        if ids[at] != IMAGE:
            at += 1
            continue
        first = at
        while at < len(ids) and ids[at] == IMAGE:
            at += 1
        opened = first > 0 and ids[first - 1] == START
        closed = at < len(ids) and ids[at] == END
        if not (opened and closed):
            return found, first
        found.append(Span(first, at - first))
    return found, None


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """A prompt without a stray placeholder, and how long each of its spans is."""
    lengths = draw(st.lists(st.integers(1, 30), max_size=5))
    ids = draw(st.lists(TEXT, max_size=8))
    for length in lengths:
        ids += [START, *[IMAGE] * length, END, *draw(st.lists(TEXT, max_size=8))]
    return ids, lengths


@given(st.lists(st.sampled_from([0, 1, IMAGE, IMAGE, START, START, END, END]), max_size=40))
def test_any_ids_give_the_oracles_spans_or_name_the_oracles_position(ids: list[int]) -> None:
    expected, wrong = oracle(ids)
    if wrong is None:
        assert spans.find_spans(ids, TOKENS) == expected
    else:
        with pytest.raises(RefusedRequest, match=rf"at positions? {wrong}( |$)"):
            spans.find_spans(ids, TOKENS)


@given(prompts())
def test_every_span_of_a_legal_prompt_is_found(prompt: tuple[list[int], list[int]]) -> None:
    ids, lengths = prompt
    found = spans.find_spans(ids, TOKENS)
    assert [span.length for span in found] == lengths
    assert sum(lengths) == ids.count(IMAGE)


@given(prompts())
def test_expand_undoes_collapse(prompt: tuple[list[int], list[int]]) -> None:
    ids, lengths = prompt
    before = list(ids)
    collapsed = spans.collapse(ids, spans.find_spans(ids, TOKENS))
    assert collapsed.count(IMAGE) == len(lengths)
    assert spans.expand(collapsed, spans.find_spans(collapsed, TOKENS), lengths) == ids
    assert ids == before


@given(prompts())
def test_collapse_and_expand_are_idempotent(prompt: tuple[list[int], list[int]]) -> None:
    ids, lengths = prompt
    found = spans.find_spans(ids, TOKENS)
    assert spans.expand(ids, found, lengths) == ids
    collapsed = spans.collapse(ids, found)
    assert spans.collapse(collapsed, spans.find_spans(collapsed, TOKENS)) == collapsed


@given(prompts(), st.data())
def test_any_lengths_are_given_and_nothing_else_changes(
    prompt: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    ids, lengths = prompt
    counts = data.draw(st.lists(st.integers(1, 30), min_size=len(lengths), max_size=len(lengths)))
    found = spans.find_spans(ids, TOKENS)
    expanded = spans.expand(ids, found, counts)
    assert spans.expand_array(numpy.array(ids, int), found, counts).tolist() == expanded
    assert [span.length for span in spans.find_spans(expanded, TOKENS)] == counts
    assert [token for token in expanded if token != IMAGE] == [token for token in ids if token != IMAGE]
    # The offsets cover the runs of the expanded ids, exactly and in order.
    assert spans.offsets(found, counts) == [
        (span.start, span.start + span.length - 1) for span in oracle(expanded)[0]
    ]


@pytest.mark.parametrize("counts", [[], [3], [3, 4, 5]])
def test_another_number_of_counts_than_of_spans_is_an_error(counts: list[int]) -> None:
    ids = [START, IMAGE, END, START, IMAGE, END]
    found = spans.find_spans(ids, TOKENS)
    with pytest.raises(ValueError, match="zip"):
        spans.expand(ids, found, counts)
    with pytest.raises(ValueError, match="zip"):
        spans.offsets(found, counts)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], []),
        ([1, 2, 3], []),
        ([START], []),
        ([END, START, 1, END], []),
        ([START, END], []),
        ([START, IMAGE, END], [Span(1, 1)]),
        ([START, START, IMAGE, IMAGE, END, END], [Span(2, 2)]),
        ([START, IMAGE, IMAGE, END, START, IMAGE, END], [Span(1, 2), Span(5, 1)]),
    ],
)
def test_legal_prompts(ids: list[int], expected: list[Span]) -> None:
    assert spans.find_spans(ids, TOKENS) == expected
    assert spans.find_spans(tuple(ids), TOKENS) == expected


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        pytest.param([IMAGE], "placeholder .* at position 0 without vision_start", id="alone"),
        pytest.param(
            [1, IMAGE, IMAGE, END], "run of 2 .* at positions 1 to 2 without vision_start", id="no VS"
        ),
        pytest.param([START, IMAGE], "at position 1 without vision_end", id="ends in P"),
        pytest.param([START, IMAGE, 1, END], "at position 1 without vision_end", id="text before VE"),
        pytest.param([START, 1, IMAGE, END], "at position 2 without vision_start", id="text after VS"),
        pytest.param([IMAGE, START, IMAGE, END], "at position 0 without vision_start", id="stray before"),
        pytest.param([START, IMAGE, END, IMAGE], "at position 3 without vision_start", id="stray after VE"),
        pytest.param([START, IMAGE, END, 1, IMAGE, 1], "at position 4 without vision_start", id="sampled"),
        pytest.param(
            [START, IMAGE, IMAGE, START, IMAGE, END], "positions 1 to 2 without vision_end", id="VS for VE"
        ),
        pytest.param([END, IMAGE, START], "at position 1 without vision_start", id="swapped"),
    ],
)
def test_a_placeholder_outside_a_span_is_refused(ids: list[int], message: str) -> None:
    with pytest.raises(RefusedRequest, match=message):
        spans.find_spans(ids, TOKENS)


@given(prompts(), st.sampled_from([("video", VIDEO), ("audio", AUDIO)]), st.data())
def test_a_placeholder_of_another_modality_is_refused_wherever_it_stands(
    prompt: tuple[list[int], list[int]], foreign: tuple[str, int], data: st.DataObject
) -> None:
    ids, _ = prompt
    modality, token = foreign
    at = data.draw(st.integers(0, len(ids)))
    ids.insert(at, token)
    with pytest.raises(RefusedRequest, match=rf"{modality} placeholder \(token {token}\) at position {at},"):
        spans.find_spans(ids, TOKENS)


class CountedList(list[int]):
    """A list that counts how many elements its C loops look at or copy."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__(ids)
        self.touched = 0

    def index(self, value: int, start: SupportsIndex = 0, *stop: SupportsIndex) -> int:
        try:
            at = super().index(value, start, *stop)
        except ValueError:
            self.touched += len(self) - int(start)
            raise
        self.touched += at - int(start) + 1
        return at

    def __contains__(self, value: object) -> bool:
        self.touched += len(self)
        return super().__contains__(value)

    def __getitem__(self, key: Any) -> Any:
        result = super().__getitem__(key)
        self.touched += len(result) if isinstance(key, slice) else 1
        return result


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([START, *[IMAGE] * 120, END, *range(100, 130)] * 1600, id="many images"),
        pytest.param([START, IMAGE, END] * 80_000, id="many small images"),
        pytest.param([START] * 125_000 + [END] * 125_000, id="markers only"),
        pytest.param([START, IMAGE, END, *[START] * 250_000], id="no VE behind"),
        pytest.param([START, *[IMAGE] * 250_000, END], id="one image"),
        pytest.param([START, IMAGE, *[1] * 250_000, END], id="far VE"),
    ],
)
def test_the_work_is_linear_in_the_number_of_ids(ids: list[int]) -> None:
    counted = CountedList(ids)
    expected, wrong = oracle(ids)
    if wrong is not None:
        with pytest.raises(RefusedRequest, match="without"):
            spans.find_spans(counted, TOKENS)
    else:
        found = spans.find_spans(counted, TOKENS)
        assert found == expected
        assert spans.expand(counted, found, [span.length for span in found]) == ids
    assert counted.touched <= 8 * len(ids)
