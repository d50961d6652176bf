"""Encoder disaggregation of videos: the encoder takes the frames, ``get_mm_data`` builds the prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deepeyes_patch.errors import RefusedRequest
from tests.lab import clips, family, models, processors, reference
from tests.sglang import films, rollouts
from tests.sglang.encoders import Sent, encode
from tests.sglang.films import BROKEN_SECONDS, SCENES, VIDEO, Request, Scene
from tests.sglang.test_disaggregation import part, receiver, taken, waited

WAYS = ("default",)
ALL = {**SCENES, **BROKEN_SECONDS}
MIXED = SCENES["videos among images"]

pytestmark = pytest.mark.skipif(
    not hasattr(processors.processor_class(), "build_input_ids_with_timestamps"),
    reason="the encoder of this release takes no videos",
)


@pytest.fixture
def kind() -> models.Kind:
    return "qwen3_vl"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.5.20, frames are pinned for a GPU; to 0.5.16, the parts of the embeddings are joined there."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *args, **kwargs: self)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)


def expected(folder: Path, made: Request, shape: str) -> Request:
    """The request in a shape of `films.SHAPES`.

    A short placeholder is replaced by what SGLang writes into its own text prompts: the block of
    ``transformers`` within the outer markers, which ``transformers`` before 5.12 drops.
    """
    asked = films.SHAPES[shape](folder, made)
    if shape in ("expanded", "drifted"):
        return asked
    count = len(made.scene.clips)
    which = {"short": set(range(count)), "first short": {0}, "last short": {count - 1}}[shape]
    ids, tokens = list(made.ids), rollouts.vision(folder)
    for index, (first, stop) in reversed(list(enumerate(films.blocks(folder, made)))):
        if index in which and ids[first] != tokens.start:
            ids[first:stop] = [tokens.start, *ids[first:stop], tokens.end]
    return replace(asked, expected_ids=ids)


def build(processor: Any, prompt: Any, sent: Sent) -> Any:
    return processor.get_mm_data(prompt, **sent.arguments())


def assert_exact(folder: Path, made: Any, request: Request, sent: Sent) -> None:
    tokens, ids = rollouts.vision(folder), request.expected_ids
    assert list(part(made, "input_ids")) == ids
    items = part(made, "mm_items")
    for token, kind, values in (
        (tokens.image, "is_image", sent.images),
        (tokens.video, "is_video", sent.videos),
    ):
        own = [item for item in items if getattr(item, kind)()]
        assert [pair for item in own for pair in item.offsets] == rollouts.runs_of(token, ids)
        if values is not None:
            assert torch.equal(torch.cat([item.precomputed_embeddings for item in own]), values)
    # One text token more changes nothing before it, and transformers 4 reads past a last vision_start.
    positions, delta = reference.positions(folder, [*ids, 0], sent.image_grids, sent.video_grids)
    assert torch.equal(part(made, "mrope_positions"), positions[:, :-1])
    assert int(part(made, "mrope_position_delta")) == delta


@pytest.mark.parametrize("shape", films.SHAPES)
@pytest.mark.parametrize("name", ALL)
def test_exact(name: str, shape: str, folder: Path, processor: Any, request: pytest.FixtureRequest) -> None:
    sent = encode(folder, processor, ALL[name])
    made = films.of_server(folder, ALL[name])
    assert torch.equal(sent.video_grids, made.video_grids)
    asked = expected(folder, made, shape)
    ids = list(asked.ids)
    request.getfixturevalue("patched")
    assert_exact(folder, build(processor, ids, sent), asked, sent)
    assert ids == asked.ids, "the caller's list was changed"


def test_outer_markers_are_the_callers(folder: Path, processor: Any, patched: None) -> None:
    """``transformers`` keeps them from 5.12 on; ids with and without them stay as they are."""
    scene = SCENES["one video"]
    sent, made = encode(folder, processor, scene), films.of_server(folder, scene)
    (block,) = films.blocks(folder, made)
    tokens = rollouts.vision(folder)
    inner = made.ids[slice(*block)]
    inner = inner[1:-1] if inner[0] == tokens.start else inner
    for own in (inner, [tokens.start, *inner, tokens.end]):
        ids = [*made.ids[: block[0]], *own, *made.ids[block[1] :]]
        asked = replace(made, ids=ids, expected_ids=ids)
        assert_exact(folder, build(processor, list(ids), sent), asked, sent)


@pytest.mark.parametrize("name", ALL)
def test_stock_fails_on_expanded_ids(name: str, folder: Path, processor: Any) -> None:
    sent, made = encode(folder, processor, ALL[name]), films.of_server(folder, ALL[name])
    with pytest.raises((AssertionError, IndexError)):
        build(processor, list(made.ids), sent)


def test_text_prompts_are_stock(folder: Path, processor: Any, request: pytest.FixtureRequest) -> None:
    sent = encode(folder, processor, MIXED)
    stock = build(processor, MIXED.text, sent)
    request.getfixturevalue("patched")
    patched = build(processor, MIXED.text, sent)
    assert part(patched, "input_ids") == part(stock, "input_ids")
    assert torch.equal(part(patched, "mrope_positions"), part(stock, "mrope_positions"))


@pytest.mark.parametrize(
    "member", [kind for kind in family.served() if kind not in ("qwen3_omni_moe", "paddleocr_vl")]
)
def test_the_other_models(member: family.Kind, request: pytest.FixtureRequest) -> None:
    """Exact, or refused where this release's encoder or language server does not know the model's videos."""
    folder = family.ensure(member)
    processor = processors.build(folder)
    # The encoder works on the clips of any model type with "qwen" in its name, and sends times for some.
    try:
        sent = encode(folder, processor, MIXED)
    except NotImplementedError:
        assert "qwen" not in member
        return
    made = films.of_server(folder, MIXED)
    text = build(processor, MIXED.text, sent)
    runs = rollouts.runs_of(rollouts.vision(folder).video, list(part(text, "input_ids")))
    request.getfixturevalue("patched")
    if len(runs) == 2 and member != "qwen2_vl":  # two videos, without the times between their groups
        assert member == "qwen4_exp" or member.startswith("qwen3_5")
        with pytest.raises(RefusedRequest, match=r"2 video\(s\) with input_ids: .*writes no times before"):
            build(processor, list(made.ids), sent)
        return
    short = films.short(folder, made) if member == "qwen2_vl" else expected(folder, made, "short")
    for asked in (made, short):
        assert_exact(folder, build(processor, list(asked.ids), sent), asked, sent)


# --- refused -----------------------------------------------------------------------------------------


def _without_a_placeholder(folder: Path, made: Request) -> list[int]:
    first, _ = rollouts.runs_of(rollouts.vision(folder).video, made.ids)[made.video_grids[0, 0] + 1]
    return made.ids[:first] + made.ids[first + 1 :]


def _without_a_group(folder: Path, made: Request) -> list[int]:
    runs = rollouts.runs_of(rollouts.vision(folder).video, made.ids)
    (_, before), (_, last) = runs[-2:]
    return made.ids[: before + 2] + made.ids[last + 2 :]


def _without_a_video(folder: Path, made: Request) -> list[int]:
    first, stop = films.blocks(folder, made)[1]
    return made.ids[:first] + made.ids[stop:]


def _at_other_times(folder: Path, made: Request) -> list[int]:
    """The same counts, of a clip with twice as many frames in the same time."""
    other = replace(clips.SLOW, frames=24, fps=4)
    return films.of_server(folder, replace(made.scene, clips=[made.scene.clips[0], other])).ids


WRONG: dict[str, tuple[Callable[[Path, Request], list[int]], str]] = {
    "placeholder": (
        _without_a_placeholder,
        r"video 1 of 2: input_ids hold 97 video placeholders for frame group 1 of 6 from position \d+ on, "
        r"and the server's video processor makes 98 \(grid_thw 6x28x14",
    ),
    "group": (
        _without_a_group,
        r"video 1 of 2: input_ids hold 5 span\(s\) of video placeholders for it .* makes 6",
    ),
    "video": (_without_a_video, r"video 1 of 2: input_ids hold no span .* for it"),
    "time": (
        _at_other_times,
        r"video 1 of 2: input_ids hold the text '<5.4 seconds>' before the placeholders for frame group 5 of "
        r"6 at position \d+, and the server's video processor writes '<5.2 seconds>'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str, folder: Path, processor: Any, patched: None) -> None:
    scene = SCENES["two videos"]
    sent, made = encode(folder, processor, scene), films.of_server(folder, scene)
    change, message = WRONG[name]
    with pytest.raises(RefusedRequest, match=message):
        build(processor, change(folder, made), sent)


def test_an_encoder_that_sends_other_times(folder: Path, processor: Any, patched: None) -> None:
    scene = SCENES["two videos"]
    sent, made = encode(folder, processor, scene), films.of_server(folder, scene)
    first, second = sent.times["video_timestamps"]
    fewer = sent.but(times={"video_timestamps": [first, second[:-1]]})
    with pytest.raises(RefusedRequest, match=r"video 1 of 2: .* times of 5 group\(s\) of .* 6x28x14 has 6"):
        build(processor, list(made.ids), fewer)
    with pytest.raises(RefusedRequest, match=r"video 1 of 2: .* times of 0 group"):
        build(processor, list(made.ids), sent.but(times={"video_timestamps": [first]}))
    with pytest.raises(RefusedRequest, match="writes no times before the frames of a video"):
        build(processor, list(made.ids), sent.but(times={}))


def test_an_encoder_that_sends_too_few_rows(folder: Path, processor: Any, patched: None) -> None:
    """Stock cuts the last item off, and the model would get another item's rows for it, or end."""
    sent, made = encode(folder, processor, MIXED), films.of_server(folder, MIXED)
    assert sent.images is not None
    for cut in (sent.but(videos=sent.videos[:-1]), sent.but(images=sent.images[:-1])):
        with pytest.raises(RefusedRequest, match="the embeddings that SGLang"):
            build(processor, list(made.ids), cut)


def test_the_last_look_tells_videos_from_images(
    folder: Path, processor: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that took the one for the other would give images the embeddings of frames."""
    cls = processors.processor_class()
    stock = cls.build_input_ids_with_timestamps  # type: ignore[attr-defined]

    def swapped(
        self: Any, prompt: Any, embeddings: Any, img_grid_thw: Any, video_grid_thw: Any, video_timestamps: Any
    ) -> Any:
        ids, offsets, modalities = stock(
            self, prompt, embeddings, img_grid_thw, video_grid_thw, video_timestamps
        )
        return ids, offsets, modalities[::-1]

    swapped.__module__ = stock.__module__  # the repair wraps no function of others
    monkeypatch.setattr(cls, "build_input_ids_with_timestamps", swapped)
    sent, made = encode(folder, processor, MIXED), films.of_server(folder, MIXED)
    request.getfixturevalue("patched")
    with pytest.raises(RefusedRequest, match="the image offsets that SGLang"):
        build(processor, list(made.ids), sent)


# --- Qwen2.5-VL: the encoder sends other seconds than those of its frames --------------------------------


def test_seconds_of_the_configured_rate(request: pytest.FixtureRequest) -> None:
    """Stock places the frames of a text prompt by them, too; so ids with such a video are refused."""
    folder = models.ensure("qwen2_5_vl")
    processor = processors.build(folder)
    scene = BROKEN_SECONDS["wide"]
    sent, made = encode(folder, processor, scene), films.of_server(folder, scene)
    (seconds,) = sent.times["second_per_grid_ts"]
    # 39 frames at 10 a second last 3.9 seconds; SGLang takes six of them, which are three groups.
    assert (float(seconds), made.video_grids.tolist()) == (1.0, [[3, 18, 32]])
    assert made.seconds == [pytest.approx(1.3)]
    stock = build(processor, scene.text, sent)
    assert list(part(stock, "input_ids")) == made.ids
    first, last = rollouts.runs_of(rollouts.vision(folder).video, made.ids)[0]
    times = part(stock, "mrope_positions")[0, first : last + 1]
    # First principles: two positions a second, rounded down.
    right = [int(group * 2 * 1.3) for group in range(3)]
    assert ((times - times[0]).unique().tolist(), right) == ([0, 2, 4], [0, 2, 5])
    request.getfixturevalue("patched")
    for asked in (made, films.short(folder, made)):
        with pytest.raises(
            RefusedRequest, match=r"1 video\(s\) with input_ids: for model type qwen2_5_vl, an "
        ):
            build(processor, list(asked.ids), sent)


@pytest.mark.skipif("qwen3_omni_moe" not in family.served(), reason="this release has no Qwen3-Omni")
def test_qwen3_omni(patched: None) -> None:
    folder = family.ensure("qwen3_omni_moe")
    processor = processors.build(folder)
    scene = BROKEN_SECONDS["wide"]
    sent = encode(folder, processor, scene)
    assert [float(seconds) for seconds in sent.times["second_per_grid_ts"]] == [1.0], "of 1.3 seconds"
    ids = rollouts.tokenize(folder, scene.text)
    with pytest.raises(
        RefusedRequest, match=r"for model type qwen3_omni_moe\w*, an encoder sends the seconds of"
    ):
        build(processor, ids, sent)


# --- where the scheduler, or the tokenizer manager, waits ------------------------------------------------


@pytest.mark.parametrize("shape", ["expanded", "drifted", "short"])
def test_exact_in_the_scheduler(shape: str, folder: Path, processor: Any, patched: None) -> None:
    sent = encode(folder, processor, MIXED)
    asked = expected(folder, films.of_server(folder, MIXED), shape)
    messages = sent.messages(receiver().EmbeddingData)
    waiting = waited(folder, processor, list(asked.ids), messages=messages)
    assert waiting.status.name == "SUCCESS", waiting.error or waiting.error_msg
    assert list(waiting.recv_req.input_ids) == asked.expected_ids
    assert_exact(folder, waiting.recv_req.mm_inputs, asked, sent)


def test_refused_in_the_scheduler(folder: Path, processor: Any, patched: None) -> None:
    scene = SCENES["two videos"]
    sent, made = encode(folder, processor, scene), films.of_server(folder, scene)
    messages = sent.messages(receiver().EmbeddingData)
    waiting = waited(folder, processor, _without_a_placeholder(folder, made), messages=messages)
    assert waiting.error is None
    assert (waiting.status.name, waiting.error_code) == ("FAIL", 400)
    assert "video 1 of 2: input_ids hold 97 video placeholders" in waiting.error_msg


def test_in_the_tokenizer(folder: Path, processor: Any, patched: None) -> None:
    sent, made = encode(folder, processor, MIXED), films.of_server(folder, MIXED)
    messages = sent.messages(receiver().EmbeddingData)
    assert_exact(folder, taken(folder, processor, list(made.ids), messages), made, sent)
    with pytest.raises(RefusedRequest, match="video 1 of 2: input_ids hold 97"):
        taken(folder, processor, _without_a_placeholder(folder, made), messages)


def test_a_text_before_the_first_time(folder: Path, processor: Any, patched: None) -> None:
    """Without outer markers, ``transformers`` makes one token of the blank and ``<``."""
    scene = Scene(f"Look: {VIDEO} What happens?", [clips.SQUARE], [])
    sent, made = encode(folder, processor, scene), films.of_server(folder, scene)
    assert_exact(folder, build(processor, list(made.ids), sent), made, sent)
