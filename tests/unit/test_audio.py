"""Audio in the ids: spans between audio_start and audio_end, and their lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepeyes_patch import RefusedRequest
from deepeyes_patch.ids import audio, spans
from deepeyes_patch.ids.request import PretokenizedRequest
from deepeyes_patch.ids.spans import Span
from deepeyes_patch.ids.tokens import VisionTokens

IMAGE, VS, VE, AUDIO, AS, AE = 7, 8, 9, 11, 12, 13
TOKENS = VisionTokens(IMAGE, VS, VE, foreign={"audio": AUDIO}, audio_start=AS, audio_end=AE)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int]]:
    """Ids with one or all placeholders a medium; the expanded ids; lengths of images and of audio."""
    sent, full = [1], [1]
    lengths: dict[int, list[int]] = {IMAGE: [], AUDIO: []}
    for pad in draw(st.lists(st.sampled_from([IMAGE, AUDIO]), max_size=6)):
        length = draw(st.integers(1, 9))
        first, last = (VS, VE) if pad == IMAGE else (AS, AE)
        sent += [first, *[pad] * draw(st.sampled_from([1, length])), last, 2]
        full += [first, *[pad] * length, last, 2]
        lengths[pad].append(length)
    return sent, full, lengths[IMAGE], lengths[AUDIO]


@given(prompts())
def test_every_span_gets_the_length_of_its_medium(
    prompt: tuple[list[int], list[int], list[int], list[int]],
) -> None:
    sent, full, images, sounds = prompt
    request = PretokenizedRequest(
        sent, TOKENS, vocab_size=None, image_count=len(images), audio_count=len(sounds)
    )
    found = request.resolve([(1, 2, 2 * length) for length in images], 2, audio_lengths=sounds)
    assert found.ids == full
    for pad, offsets in ((IMAGE, found.offsets), (AUDIO, found.audio)):
        assert offsets == [(run.start, run.start + run.length - 1) for run in spans.find_runs(full, pad)]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([AUDIO, AE], "an audio placeholder .token 11. at position 0 without audio_start .token 12."),
        (
            [AS, AUDIO, AUDIO, 1],
            "a run of 2 audio placeholders .token 11. at positions 1 to 2 without audio_end",
        ),
        ([VS, AUDIO, VE], "without audio_start"),
        ([1], r"hold 0 audio span.s. .*and 1 audio.s. came"),
    ],
)
def test_ids_that_hold_no_audio_span(ids: list[int], message: str) -> None:
    with pytest.raises(RefusedRequest, match=message):
        PretokenizedRequest(ids, TOKENS, vocab_size=None, image_count=0, audio_count=1)


def test_a_request_without_audio_may_hold_none() -> None:
    with pytest.raises(
        RefusedRequest, match=r"hold an audio placeholder .token 11. at position 1, and no audio"
    ):
        PretokenizedRequest([AS, AUDIO, AE], TOKENS, vocab_size=None, image_count=0)


@pytest.mark.parametrize("length", [2, 4, 6])
def test_another_length(length: int) -> None:
    with pytest.raises(
        RefusedRequest, match=f"hold {length} audio placeholders .* position 3 on, .* makes 5"
    ):
        audio.check_lengths([Span(3, length)], [5])


def test_audio_that_no_wrapper_has_seen() -> None:
    with pytest.raises(RefusedRequest, match="made of 0 passed through"):
        audio.check_lengths([Span(3, 1)], [])
