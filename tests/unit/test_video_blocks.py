"""Blocks of videos: read from the HF processor's ids, found in a caller's, spliced in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepeyes_patch import RefusedRequest
from deepeyes_patch.ids import spans
from deepeyes_patch.ids import video_blocks as videos
from deepeyes_patch.ids.request import PretokenizedRequest, Resolution, ServerVideos
from deepeyes_patch.ids.tokens import VisionTokens
from deepeyes_patch.ids.video_blocks import Block, GridTHW

# Letters are their own tokens, as is "ab": texts have more than one spelling.
AB, VS, VE, V, P = 300, 301, 302, 303, 304
TOKENS = VisionTokens(P, VS, VE, foreign={"video": V, "audio": 305}).with_videos()
MERGE = 2
WORDS = {AB: "ab", VS: "<vs>", VE: "<ve>", V: "<v>", P: "<p>"}


def spell(ids: Sequence[int]) -> str:
    return "".join(WORDS.get(token) or chr(token) for token in ids)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@dataclass(frozen=True)
class Film:
    """A video of ``t`` groups of ``k`` tokens; ``times`` are the labels, none for Qwen2.5-VL."""

    t: int
    k: int
    times: tuple[str, ...] = ()
    outer: bool = False

    @property
    def grid(self) -> GridTHW:
        return (self.t, 2, 2 * self.k)

    @property
    def ids(self) -> list[int]:
        if not self.times:
            return [VS, *[V] * (self.t * self.k), VE]
        groups = [[*letters(time), VS, *[V] * self.k, VE] for time in self.times]
        inner = [token for group in groups for token in group]
        return [VS, *inner, VE] if self.outer else inner

    @property
    def block(self) -> Block:
        if not self.times:
            return Block(self.ids, [self.t * self.k], [[]])
        return Block(self.ids, [self.k] * self.t, [letters(time) for time in self.times])


SHORT = [VS, V, VE]
IMAGE = [VS, P, P, VE]


def timed(t: int, k: int, outer: bool = False, first: float = 0.2) -> Film:
    return Film(t, k, tuple(f"<{first + i:.1f} seconds>" for i in range(t)), outer)


@st.composite
def films(draw: st.DrawFn, most: int = 4) -> list[Film]:
    kind = draw(st.sampled_from(["plain", "timed", "outer"]))
    found = []
    for _ in range(draw(st.integers(1, most))):
        t, k = draw(st.integers(1, 4)), draw(st.integers(1, 5))
        first = draw(st.sampled_from([0.2, 0.5, 7.0, 98.6]))
        found.append(Film(t, k) if kind == "plain" else timed(t, k, kind == "outer", first))
    return found


# Lone markers are text; of times only the beginning, so that no prompt holds one by chance.
TEXT = st.lists(st.sampled_from([*letters("ab <.s1"), AB, VS, VE]), max_size=6)


def joined(pieces: list[list[int]]) -> list[int]:
    return [token for piece in pieces for token in piece]


# --- the server's ids ---------------------------------------------------------------------------------


@given(films(), st.integers(0, 3))
def test_blocks_are_read_back(made: list[Film], images: int) -> None:
    ids = IMAGE * images + joined([film.ids for film in made])
    found = videos.read_blocks(ids, [film.grid for film in made], MERGE, TOKENS)
    assert found == [film.block for film in made]


@pytest.mark.parametrize(
    ("ids", "grids"),
    [
        pytest.param([*timed(2, 3).ids, 1], [timed(2, 3).grid], id="something after the last"),
        pytest.param([VS, *timed(2, 3).ids], [timed(2, 3).grid], id="an outer start without an end"),
        pytest.param(timed(2, 3).ids, [timed(2, 4).grid], id="another grid"),
        pytest.param(timed(2, 3).ids, [timed(2, 3).grid] * 2, id="a video less"),
        pytest.param(timed(2, 3).ids * 2, [timed(2, 3).grid], id="a video more"),
        pytest.param([], [(1, 2, 2)], id="nothing"),
    ],
)
def test_an_unknown_layout_is_refused(ids: list[int], grids: list[GridTHW]) -> None:
    with pytest.raises(RefusedRequest, match="laid out in a way that deepeyes-patch does not know"):
        videos.read_blocks(ids, grids, MERGE, TOKENS)


# --- the caller's ids ---------------------------------------------------------------------------------


def resolve(ids: list[int], made: list[Film], images: int = 0) -> Resolution:
    """``images`` are of two tokens each."""
    request = PretokenizedRequest(
        ids, TOKENS_OF_CALLER, vocab_size=1000, image_count=images, video_count=len(made)
    )
    server = ServerVideos([film.grid for film in made], [film.block for film in made], spell)
    return request.resolve([(1, 2, 4)] * images, MERGE, server_videos=server)


TOKENS_OF_CALLER = VisionTokens(P, VS, VE, foreign={"video": V, "audio": 305})


def runs(ids: list[int], token: int) -> list[tuple[int, int]]:
    spelt = "".join("x" if i == token else "." for i in ids)
    return [(match.start(), match.end() - 1) for match in re.finditer("x+", spelt)]


@given(films(), st.data())
def test_expanded_short_and_mixed(made: list[Film], data: st.DataObject) -> None:
    sent, expected = [], []
    images = 0
    for film in made:
        text = data.draw(TEXT)
        if data.draw(st.booleans()):
            images += 1
            sent.append([VS, P, VE] if data.draw(st.booleans()) else IMAGE)
            expected.append(IMAGE)
        sent += [text, SHORT if data.draw(st.booleans()) else film.ids]
        expected += [text, film.ids]
    tail = data.draw(TEXT)
    ids = joined([*sent, tail])
    before = list(ids)
    found = resolve(ids, made, images)
    assert found.ids == joined([*expected, tail])
    assert ids == before
    assert found.offsets == runs(found.ids, P)
    assert [pair for video in found.videos for pair in video.offsets] == runs(found.ids, V)
    assert [len(video.offsets) for video in found.videos] == [len(film.block.lengths) for film in made]
    assert [video.grid for video in found.videos] == [film.grid for film in made]


@given(films(), st.data())
def test_one_id_changed_is_refused_or_still_the_callers(made: list[Film], data: st.DataObject) -> None:
    """Whatever is served holds the caller's ids, with exactly the server's spans and times in them."""
    ids = joined([[ord("a"), *film.ids, ord("b")] for film in made])
    at = data.draw(st.integers(0, len(ids) - 1))
    change = data.draw(st.sampled_from(["drop", "double", *[*letters("07a>"), VS, VE, V]]))
    if change == "drop":
        changed = ids[:at] + ids[at + 1 :]
    elif change == "double":
        changed = ids[: at + 1] + ids[at:]
    else:
        assert isinstance(change, int)
        changed = [*ids[:at], change, *ids[at + 1 :]]
    try:
        found = resolve(changed, made)
    except RefusedRequest:
        return
    check(found, made)
    # With every block of k = 1 and t = 1 a placeholder and a block are alike; elsewhere nothing is added.
    assert len(found.ids) - len(changed) in {len(film.ids) - 3 for film in made} | {0}


@given(films(2), st.lists(st.sampled_from([VS, VE, V, V, *letters("<0.2 seconds>"), AB]), max_size=60))
def test_any_ids_are_refused_or_hold_the_servers_spans(made: list[Film], ids: list[int]) -> None:
    try:
        found = resolve(ids, made)
    except RefusedRequest:
        return
    check(found, made)


def check(found: Resolution, made: list[Film]) -> None:
    own = runs(found.ids, V)
    wanted = [length for film in made for length in film.block.lengths]
    labels = [label for film in made for label in film.block.labels]
    assert [last - first + 1 for first, last in own] == wanted
    assert [pair for video in found.videos for pair in video.offsets] == own
    for (first, last), label in zip(own, labels, strict=True):
        assert (found.ids[first - 1], found.ids[last + 1]) == (VS, VE)
        assert spell(found.ids[: first - 1]).endswith(spell(label))
    for film, video in zip(made, found.videos, strict=True):
        inner = zip(video.offsets, video.offsets[1:], film.block.labels[1:], strict=False)
        for (_, last), (first, _), label in inner:
            assert spell(found.ids[last + 2 : first - 1]) == spell(label)


def test_a_time_may_be_spelt_in_other_ids() -> None:
    film = Film(2, 3, ("<ab>", "<abab>"))
    ids = [*letters("x<"), AB, ord(">"), VS, V, V, V, VE, *letters("<ab"), AB, ord(">"), VS, V, V, V, VE]
    assert resolve(ids, [film]).ids == ids


def test_a_time_may_be_glued_to_the_text_before_it() -> None:
    """``transformers`` without the outer markers tokenizes ``Look: <0.2 seconds>`` as one text."""
    film = Film(1, 3, ("b seconds>",))
    ids = [AB, *letters(" seconds>"), VS, V, V, V, VE]
    assert resolve(ids, [film]).ids == ids


def test_a_short_one_after_what_reads_as_a_time_is_refused() -> None:
    """Its block would be spliced in after another time; with t and k of 1 nothing else tells them apart."""
    film = timed(1, 1)
    with pytest.raises(RefusedRequest, match=r"'.*<9.9 seconds>'.*writes '<0.2 seconds>'"):
        resolve([*letters("<9.9 seconds>"), *SHORT], [film])
    assert resolve(film.ids, [film]).ids == film.ids


A, B = timed(3, 5), timed(2, 4, first=10.0)

REFUSALS = {
    "the first group missing": (A.ids[20:], [A], r"'<1.2 seconds>' before .* writes '<0.2 seconds>'"),
    "the last group missing": (
        A.ids[: -len("<2.2 seconds>") - 7],
        [A],
        r"video 0 of 1: input_ids hold 2 span\(s\) of video placeholders for it from position 14 on, and the "
        r"server's video processor makes 3 \(grid_thw 3x2x10, spatial_merge_size 2",
    ),
    "a placeholder too many": (
        [*A.ids[:14], V, *A.ids[14:]],
        [A],
        r"video 0 of 1: input_ids hold 6 video placeholders for frame group 0 of 3 from position 14 on, and "
        r"the server's video processor makes 5",
    ),
    "another time": (
        letters("<0.3 seconds>") + A.ids[13:],
        [A],
        r"hold the text '<0.3 seconds>' before the placeholders for frame group 0 of 3 at position 14, and "
        r"the server's video processor writes '<0.2 seconds>'",
    ),
    "another time later": (
        [*A.ids[:20], *letters("<1.3 seconds>"), *A.ids[33:]],
        [A],
        r"hold the text '<1.3 seconds>' before the placeholders for frame group 1 of 3",
    ),
    "more than the time between groups": (
        [*A.ids[:20], *letters("x"), *A.ids[20:]],
        [A],
        r"hold the text 'x<1.2 seconds>' before .* writes '<1.2 seconds>'",
    ),
    "much more than the time between groups": (
        [*A.ids[:20], *letters("x" * 99), *A.ids[20:]],
        [A],
        r"hold the text '\.\.\.x+<1.2 seconds>' before",
    ),
    "two videos swapped": (B.ids + A.ids, [A, B], r"video 0 of 2: input_ids hold 4 .* makes 5"),
    "one video for two": (A.ids, [A, B], r"video 1 of 2: input_ids hold no span"),
    "three for two": (A.ids + B.ids + SHORT, [A, B], r"hold 6 spans .* 2 video\(s\) .* take 5; the next"),
    "none for one": ([1, 2, 3], [A], r"hold 0 span\(s\) of video placeholders .* 1 video\(s\) came"),
    "a stray one": (
        [*A.ids, V],
        [A],
        r"a video placeholder \(token 303\) at position .* belongs to no video",
    ),
    "plain, one too few": (
        [*Film(2, 3).ids[:-2], VE],
        [Film(2, 3)],
        r"video 0 of 1: input_ids hold 5 video placeholders from position 1 on, .* makes 6 \(grid_thw 2x2x6",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_with_a_message(name: str) -> None:
    ids, made, message = REFUSALS[name]
    with pytest.raises(RefusedRequest, match=message):
        resolve(ids, made)


def test_a_server_that_made_other_videos_is_refused() -> None:
    request = PretokenizedRequest(A.ids, TOKENS_OF_CALLER, vocab_size=1000, image_count=0, video_count=1)
    with pytest.raises(RefusedRequest, match=r"1 video\(s\) came with input_ids, and the server made 0"):
        request.resolve([], MERGE)
    with pytest.raises(RefusedRequest, match=r"made a video of grid_thw 9x2x10, and 15 tokens of it"):
        request.resolve([], MERGE, server_videos=ServerVideos([(9, 2, 10)], [A.block], spell))


def test_without_videos_a_placeholder_is_foreign() -> None:
    with pytest.raises(
        RefusedRequest, match=r"a video placeholder \(token 303\) at position 1, and no video"
    ):
        PretokenizedRequest(SHORT, TOKENS_OF_CALLER, vocab_size=1000, image_count=0)
    assert spans.find_video_spans(SHORT, TOKENS_OF_CALLER) == []


def test_a_long_history_is_not_spelt() -> None:
    """Texts are looked at next to placeholders only: a prompt may hold a quarter of a million ids."""
    seen = []

    def counting(ids: Sequence[int]) -> str:
        seen.append(len(ids))
        return spell(ids)

    film = Film(2, 3, ("<ab>", "<abab>"))
    history = letters("x") * 200_000
    ids = [*history, *letters("<"), AB, *letters(">"), *film.ids[4:]]
    request = PretokenizedRequest(ids, TOKENS_OF_CALLER, vocab_size=1000, image_count=0, video_count=1)
    request.resolve([], MERGE, server_videos=ServerVideos([film.grid], [film.block], counting))
    assert max(seen) < 50
