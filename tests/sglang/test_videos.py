"""Pre-tokenized requests with videos through the release's real processor class, stock and patched."""

from __future__ import annotations

import base64
import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import deepeyes_patch
from deepeyes_patch.errors import RefusedRequest
from tests.lab import clips, family, models, processors, reference
from tests.lab.clips import Clip
from tests.sglang import disabled, films, rollouts
from tests.sglang.films import (
    BROKEN_SECONDS,
    SCENES,
    SHAPES,
    VIDEO,
    Request,
    Scene,
    assert_exact,
    tells_times,
)

WAYS = ("default", "pool, retokenize")


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases before 0.5.20 pin frames for a GPU even where there is none."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *args, **kwargs: self)


@pytest.fixture
def as_hf() -> Iterator[None]:
    """The processor repair with the video repair."""
    deepeyes_patch.install(["processor", "video"])
    try:
        yield
    finally:
        deepeyes_patch.uninstall()


def reads_times() -> bool:
    """Whether this release's ``transformers`` makes Qwen2.5-VL's seconds from the times (5 and later)."""
    from transformers.video_utils import VideoMetadata

    return hasattr(VideoMetadata, "sampled_fps")


def check(folder: Path, processor: Any, request: Request) -> None:
    assert_exact(folder, films.attempt(processor, list(request.ids), request.scene), request)


# --- served -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SCENES)
def test_what_the_server_makes_of_it_is_exact(
    name: str, shape: str, kind: models.Kind, folder: Path, processor: Any, request: pytest.FixtureRequest
) -> None:
    made = films.of_server(folder, SCENES[name])
    wanted = SHAPES[shape](folder, made)
    sent = list(wanted.ids)
    request.getfixturevalue("patched")
    result = films.served(processor, sent, wanted.scene)
    assert_exact(folder, result, wanted)
    assert sent == wanted.ids, "the caller's list was changed"


def test_a_text_before_the_first_time(kind: models.Kind, folder: Path, processor: Any, patched: None) -> None:
    """Without outer markers, ``transformers`` makes one token of the blank and ``<``."""
    scene = Scene(f"Look: {VIDEO} What happens?", [clips.SQUARE], [])
    made = films.of_server(folder, scene)
    assert_exact(folder, films.served(processor, made.ids, scene), made)


@pytest.mark.parametrize("name", BROKEN_SECONDS)
def test_broken_seconds(
    name: str, kind: models.Kind, folder: Path, processor: Any, request: pytest.FixtureRequest
) -> None:
    made = films.of_server(folder, BROKEN_SECONDS[name])
    assert any(s != int(s) for s in made.seconds)
    request.getfixturevalue("patched")
    check(folder, processor, made)
    check(folder, processor, films.short(folder, made))


def test_the_servers_own_text_prompt(folder: Path, kind: models.Kind, processor: Any) -> None:
    """It agrees with what the other tests expect, and before 0.5.4 Qwen3-VL's fails or has other times."""
    scene = SCENES["image, then video"]
    made = films.of_server(folder, scene)
    stock = films.attempt(processor, scene.text, scene)
    if kind == "qwen3_vl" and not tells_times():
        assert isinstance(stock, Exception) or stock.input_ids != made.ids
    else:
        assert stock.input_ids == made.ids
        assert torch.equal(films.items(stock, "video_grid_thw"), made.video_grids)


def test_stock_fails_where_the_patch_is_needed(folder: Path, processor: Any) -> None:
    """Expanded ids explode, one placeholder per video drifts."""
    scene = SCENES["one video"]
    made = films.of_server(folder, scene)
    explodes = films.attempt(processor, list(made.ids), scene)
    assert isinstance(explodes, Exception)
    few = films.short(folder, made)
    drifted = films.drifted(folder, replace(few, expected_ids=few.ids))
    drifts = films.attempt(processor, list(drifted.ids), scene)
    if isinstance(drifts, Exception):
        assert not tells_times()
        return
    outside = [token for token in drifted.ids if token != rollouts.vision(folder).video]
    assert [t for t in drifts.input_ids if t in set(outside)] != outside
    assert len(drifts.input_ids) == len(made.ids) or not tells_times()


@pytest.mark.parametrize(
    "member", [kind for kind in family.served() if kind not in ("qwen3_omni_moe", "paddleocr_vl")]
)
def test_the_other_models(member: family.Kind, request: pytest.FixtureRequest) -> None:
    """Served also where SGLang has no positions for the text prompt."""
    folder, scene = family.ensure(member), SCENES["videos among images"]
    processor = processors.build(folder)
    made = films.of_server(folder, scene)
    text = films.attempt(processor, scene.text, scene)
    if isinstance(text, Exception):
        assert member == "intern_s2_preview" or not tells_times(), repr(text)
    else:
        assert text.input_ids == made.ids or not tells_times()
    assert isinstance(films.attempt(processor, list(made.ids), scene), Exception)
    request.getfixturevalue("patched")
    for sent in (made, films.drifted(folder, made), films.short(folder, made)):
        check(folder, processor, sent)


def test_a_model_type_that_sglang_cannot_place_is_refused(
    folder: Path, processor: Any, patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = films.of_server(folder, SCENES["one video"])
    monkeypatch.setattr(processor, "model_type", "unheard_of", raising=False)
    monkeypatch.setattr(processor.hf_config, "model_type", "unheard_of")
    with pytest.raises(RefusedRequest, match="no M-RoPE positions for these images or videos of model type"):
        films.served(processor, made.ids, made.scene)


def test_stock_gets_the_times_of_qwen2_5_vl_wrong() -> None:
    folder, processor = models.ensure("qwen2_5_vl"), processors.build("qwen2_5_vl")
    scene = BROKEN_SECONDS["wide"]
    stock = films.served(processor, scene.text, scene)
    assert films.of_server(folder, scene).seconds == [pytest.approx(1.3)]
    first, last = stock.offsets[0]
    groups = stock.mrope_positions[0, first : last + 1].reshape(3, -1)[:, 0] - stock.mrope_positions[0, first]
    assert groups.tolist() != [0, 2, 5], "two positions a second, rounded down"


@pytest.mark.skipif("qwen3_omni_moe" not in family.served(), reason="this release has no Qwen3-Omni")
def test_stock_gets_the_times_of_qwen3_omni_wrong(request: pytest.FixtureRequest) -> None:
    """Its HF processor takes the frames for one a second; so the last look refuses ids with a video."""
    folder, scene = family.ensure("qwen3_omni_moe"), SCENES["one video"]
    processor = processors.build(folder)
    stock = films.served(processor, scene.text, scene)
    ((first, last),) = rollouts.runs_of(rollouts.vision(folder).video, stock.input_ids)
    times = stock.mrope_positions[0, first : last + 1].long()
    # Four groups of frames in four seconds; 13 positions a second.
    assert processor.hf_config.position_id_per_seconds == 13
    assert (times - times[0]).unique().tolist() == [0, 26, 52, 78]
    request.getfixturevalue("patched")
    for ids in (stock.input_ids, rollouts.tokenize(folder, scene.text)):
        with pytest.raises(RefusedRequest, match="the M-RoPE positions that SGLang"):
            films.served(processor, list(ids), scene)


def test_text_prompts_are_bit_for_bit_stock(
    folder: Path, processor: Any, request: pytest.FixtureRequest
) -> None:
    scene = SCENES["image, then video"]
    stock = films.attempt(processor, scene.text, scene)
    request.getfixturevalue("patched")
    patched = films.attempt(processor, scene.text, scene)
    if isinstance(stock, Exception):
        assert not tells_times()
        assert repr(patched) == repr(stock)
        return
    assert patched.input_ids == stock.input_ids
    assert patched.offsets == stock.offsets
    assert torch.equal(patched.mrope_positions, stock.mrope_positions)
    for ours_, theirs in zip(patched.mm_items, stock.mm_items, strict=True):
        assert torch.equal(ours_.feature, theirs.feature)


def test_features_are_those_of_transformers(folder: Path, processor: Any, patched: None) -> None:
    made = films.of_server(folder, SCENES["image, then video"])
    result = films.served(processor, made.ids, made.scene)
    for name, pixels in (("image_grid_thw", made.pixels), ("video_grid_thw", made.video_pixels)):
        assert torch.equal(films.features(result, name), pixels)


def test_a_long_video_ends_one_past_its_last_time(patched: None) -> None:
    """Qwen2.5-VL's times outgrow a small grid. ``transformers`` 5 lets the text overlap them; the paper,
    ``transformers`` 4 and SGLang do not."""
    clip = Clip(40, 56, 56, 2)
    tokens = rollouts.vision(models.ensure("qwen2_5_vl"))
    ids = [tokens.start, tokens.video, tokens.end, 100]
    result = films.served(processors.build("qwen2_5_vl"), ids, Scene(VIDEO, [clip], []))
    ((t, h, w),) = films.items(result, "video_grid_thw").tolist()
    assert (t, max(h, w) // 2 < 2 * t) == (20, True)
    first, last = result.offsets[0]
    assert result.mrope_positions[0, first : last + 1].reshape(t, -1)[:, 0].tolist() == [
        1 + 2 * i for i in range(t)
    ]
    assert result.mrope_positions[:, last + 1].tolist() == [2 * t] * 3


@pytest.mark.parametrize("form", ["bytes", "path", "data URL", "base64"])
def test_forms_of_a_clip(form: str, folder: Path, kind: models.Kind, patched: None, tmp_path: Path) -> None:
    scene, processor = SCENES["one video"], processors.build(kind)
    made = films.of_server(folder, scene)
    data = scene.clips[0].data
    (tmp_path / "clip.avi").write_bytes(data)
    text = base64.b64encode(data).decode()
    sent = {
        "bytes": data,
        "path": str(tmp_path / "clip.avi"),
        "data URL": f"data:video/avi;base64,{text}",
        "base64": text,
    }[form]
    assert_exact(folder, processors.process(processor, made.ids, None, [sent]), made)


# --- refused ------------------------------------------------------------------------------------------


class _Good:
    """A good request of two videos and an image, to be spoilt."""

    def __init__(self, kind: models.Kind, folder: Path, processor: Any) -> None:
        turn = SCENES["two videos"]
        self.scene = Scene(rollouts.IMAGE + turn.text, turn.clips, films.PICTURES[:1])
        made = films.of_server(folder, self.scene)
        self.kind, self.folder, self.made = kind, folder, made
        self.ids = made.ids
        self.tokens = rollouts.vision(folder)
        self.runs = rollouts.runs_of(self.tokens.video, self.ids)
        self.grids = made.video_grids.tolist()
        self.length = self.runs[0][1] - self.runs[0][0] + 1

    def clip(self, index: int) -> bytes:
        return self.scene.clips[index].data

    def retimed(self) -> list[int]:
        """The first time of the first video one tenth of a second later."""
        tokenizer = reference.processor(self.folder).tokenizer
        first, stop = films.blocks(self.folder, self.made)[0]
        text = tokenizer.decode(self.ids[first:stop])
        assert text.count("<0.2 seconds>") == 1
        wrong = tokenizer.encode(text.replace("<0.2 seconds>", "<0.3 seconds>"), add_special_tokens=False)
        assert len(wrong) == stop - first, "the counts agree, and the times do not"
        return self.ids[:first] + wrong + self.ids[stop:]


Spoilt = tuple[list[int], list[Any], str]

REFUSALS: dict[str, Callable[[_Good], Spoilt]] = {
    "one pad too few": lambda g: (
        without(g.ids, g.runs[0][0]),
        [g.clip(0), g.clip(1)],
        rf"video 0 of 2: input_ids hold {g.length - 1} video placeholders.* from position {g.runs[0][0]} on, "
        rf"and the server's video processor makes {g.length} \(grid_thw {'x'.join(map(str, g.grids[0]))}",
    ),
    "one pad too many": lambda g: (
        [*g.ids[: g.runs[-1][0]], g.tokens.video, *g.ids[g.runs[-1][0] :]],
        [g.clip(0), g.clip(1)],
        rf"video 1 of 2: input_ids hold .*grid_thw {'x'.join(map(str, g.grids[1]))}",
    ),
    "videos swapped": lambda g: (g.ids, [g.clip(1), g.clip(0)], r"video 0 of 2: input_ids hold"),
    "a video missing": lambda g: (g.ids, [g.clip(0)], r"spans of video placeholders.*1 video\(s\)"),
    "a video too many": lambda g: (
        rollouts.tokenize(g.folder, rollouts.IMAGE + VIDEO),
        [g.clip(0), g.clip(1)],
        r"1 span\(s\) of video placeholders.*2 video\(s\) came",
    ),
    "no video at all": lambda g: (g.ids, [], r"video placeholder .*position"),
    "a stray pad": lambda g: (
        [*g.ids, g.tokens.video],
        [g.clip(0), g.clip(1)],
        r"a video placeholder .* without vision_start.*belongs to no video",
    ),
    "a short one more": lambda g: (
        [*g.ids, g.tokens.start, g.tokens.video, g.tokens.end],
        [g.clip(0), g.clip(1)],
        rf"2 video\(s\) that came with them take {len(g.runs)}; the next one is at position {len(g.ids) + 1}",
    ),
    "an image placeholder too few": lambda g: (
        without(g.ids, g.ids.index(g.tokens.image)),
        [g.clip(0), g.clip(1)],
        r"image 0 of 1",
    ),
    "frames without times": lambda g: (
        g.ids,
        [g.clip(0), list(g.scene.clips[1].decoded())],
        r"video_data\[1\] is of type list, and no clip",
    ),
    "an array of frames": lambda g: (
        g.ids,
        [g.scene.clips[0].decoded(), g.clip(1)],
        r"video_data\[0\] is of type ndarray, and no clip",
    ),
    "a preprocessed video": lambda g: (
        g.ids,
        [g.clip(0), {"format": "processor_output", "video_grid_thw": torch.tensor([[1, 2, 2]])}],
        r"preprocessed item 1 of video_data, of format processor_output, holds no pixel_values_videos",
    ),
    "None in place of a video": lambda g: (g.ids, [g.clip(0), None], r"video_data\[1\] is of type NoneType"),
}


def without(ids: list[int], position: int) -> list[int]:
    return ids[:position] + ids[position + 1 :]


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_with_a_message(
    name: str, kind: models.Kind, folder: Path, processor: Any, request: pytest.FixtureRequest
) -> None:
    good = _Good(kind, folder, processor)
    request.getfixturevalue("patched")
    ids, videos, message = REFUSALS[name](good)
    with pytest.raises(RefusedRequest, match=message) as caught:
        processors.process(processor, ids, good.scene.images, videos)
    assert len(str(caught.value)) < 1000
    assert_exact(folder, films.served(processor, good.ids, good.scene), good.made)


def test_other_times_of_the_same_length_are_refused(request: pytest.FixtureRequest) -> None:
    """Comparing counts would serve this."""
    processor = processors.build("qwen3_vl")
    good = _Good("qwen3_vl", models.ensure("qwen3_vl"), processor)
    request.getfixturevalue("patched")
    with pytest.raises(RefusedRequest, match=r"video 0 of 2: .*'.*<0.3 seconds>'.*writes '<0.2 seconds>'"):
        films.served(processor, good.retimed(), good.scene)


def test_ids_of_transformers_are_refused_with_both_grids(
    folder: Path, kind: models.Kind, processor: Any, patched: None
) -> None:
    """SGLang samples and resizes in its own way; see the ``video`` repair below."""
    scene = SCENES["one video"]
    trainer, server = films.of_transformers(folder, scene), films.of_server(folder, scene)
    assert trainer.video_grids.tolist() != server.video_grids.tolist()
    own = rollouts.runs_of(rollouts.vision(folder).video, trainer.ids)[0]
    t, h, w = server.video_grids.tolist()[0]
    with pytest.raises(
        RefusedRequest,
        match=rf"video 0 of 1: input_ids hold {own[1] - own[0] + 1} .*grid_thw {t}x{h}x{w}",
    ):
        films.served(processor, trainer.ids, scene)


@pytest.mark.parametrize("broken", ["random bytes", "truncated", "no bytes", "a file that is not there"])
def test_broken_clips_are_refused_and_the_next_request_is_right(
    broken: str, folder: Path, processor: Any, request: pytest.FixtureRequest
) -> None:
    scene = SCENES["one video"]
    made = films.of_server(folder, scene)
    request.getfixturevalue("patched")
    data: Any = {
        "random bytes": random.Random(1).randbytes(4096),
        "truncated": scene.clips[0].data[:300],
        "no bytes": b"",
        "a file that is not there": "/nowhere/at/all.mp4",
    }[broken]
    with pytest.raises(RefusedRequest, match=r"\w") as caught:
        processors.process(processor, made.ids, None, [data])
    assert len(str(caught.value)) < 2000
    assert_exact(folder, films.served(processor, made.ids, scene), made)


def test_audio_is_refused(folder: Path, kind: models.Kind, patched: None) -> None:
    ids = rollouts.tokenize(folder, VIDEO)
    with pytest.raises(RefusedRequest, match="audio data with input_ids"):
        processors.process(processors.build(kind), ids, None, [clips.SQUARE.data], audio_data=[b"x"])


# --- one wrapper left out -----------------------------------------------------------------------------

SEAMS = [
    "preprocess_video",
    "process_mm_data",
    "_process_and_collect_mm_items",
    "process_and_combine_mm_data",
]


@pytest.mark.parametrize("seam", SEAMS)
def test_one_wrapper_left_out(
    seam: str, folder: Path, processor: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by the last look. The one that may be missing takes the scope to the worker thread."""
    made = films.drifted(folder, films.of_server(folder, SCENES["one video"]))
    disabled.leave_out(monkeypatch, seam)
    deepeyes_patch.install(["processor"])
    try:
        outcome = films.attempt(processor, list(made.ids), made.scene)
    finally:
        deepeyes_patch.uninstall()
    on_a_thread = "pool" in request.node.callspec.params["processor"]
    if seam == "process_and_combine_mm_data" and not on_a_thread:
        assert_exact(folder, outcome, made)
    elif not tells_times() and folder.name.startswith("qwen3"):
        # Without the times, the HF processor fails or samples the frames again.
        assert isinstance(outcome, Exception), "served without the times of frames"
    else:
        assert isinstance(outcome, RefusedRequest), repr(outcome)
        assert outcome.reason == "inexact"
        times = seam in ("preprocess_video", "process_mm_data")
        lost = "the times of frames that SGLang" if times else "did not pass through deepeyes-patch"
        assert lost in str(outcome)


def test_wrong_times_in_the_servers_own_text_are_refused(
    patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short placeholder would be replaced by them."""
    folder, processor = models.ensure("qwen3_vl"), processors.build("qwen3_vl")
    cls = type(processor._processor)
    original = cls._calculate_timestamps

    def late(self: Any, *args: Any, **kwargs: Any) -> list[float]:
        return [seconds + 1 for seconds in original(self, *args, **kwargs)]

    monkeypatch.setattr(cls, "_calculate_timestamps", late)
    scene = SCENES["one video"]
    with pytest.raises(RefusedRequest, match=r"write '<1.2 seconds>' before frames that are at 0.25 seconds"):
        films.served(processor, rollouts.tokenize(folder, scene.text), scene)


# --- the video repair ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SCENES, *BROKEN_SECONDS])
def test_ids_of_transformers_are_exact_with_the_video_repair(
    name: str, folder: Path, kind: models.Kind, processor: Any, as_hf: None
) -> None:
    scene = {**SCENES, **BROKEN_SECONDS}[name]
    trainer = films.of_transformers(folder, scene)
    check(folder, processor, trainer)
    check(folder, processor, films.drifted(folder, trainer))
    check(folder, processor, films.short(folder, trainer))


@pytest.mark.parametrize("name", clips.CLIPS)
def test_pixels_and_seconds_are_those_of_transformers(
    name: str, folder: Path, kind: models.Kind, processor: Any, as_hf: None
) -> None:
    """Text prompts too: the ids, grid, pixels and seconds, which ``transformers`` 4 does not know itself."""
    scene = Scene(SCENES["one video"].text, [clips.CLIPS[name]], [])
    wanted = reference.expand(folder, scene.text, (), scene.clips)
    result = films.served(processor, scene.text, scene)
    assert result.input_ids == wanted.input_ids
    assert torch.equal(films.items(result, "video_grid_thw"), wanted.video_grids)
    assert torch.equal(films.features(result, "video_grid_thw"), wanted.video_values)
    if kind == "qwen2_5_vl":
        (item,) = result.mm_items
        seconds = torch.as_tensor(item.second_per_grid_ts)
        assert seconds.tolist() == pytest.approx(films.seconds(scene, wanted.video_grids))
        assert torch.equal(seconds, torch.as_tensor(wanted.seconds)) or not reads_times()


@pytest.mark.parametrize("name", ["square", "wide", "long"])  # of "slow" all frames are taken, at their size
def test_stock_differs_from_transformers(name: str, folder: Path, kind: models.Kind, processor: Any) -> None:
    scene = Scene(SCENES["one video"].text, [clips.CLIPS[name]], [])
    wanted = reference.expand(folder, scene.text, (), scene.clips)
    stock = films.attempt(processor, scene.text, scene)
    if isinstance(stock, Exception):
        assert not tells_times()
        return
    same_ids = stock.input_ids == wanted.input_ids
    features = films.features(stock, "video_grid_thw")
    assert not same_ids or not torch.equal(features, wanted.video_values)


def takes_video_config() -> bool:
    from sglang.srt.server_args import ServerArgs

    return "mm_process_config" in inspect.signature(ServerArgs).parameters


needs_config = pytest.mark.skipif(
    not (tells_times() and takes_video_config()), reason="this release has no --mm-process-config for videos"
)


@needs_config
@pytest.mark.parametrize("kind", models.KINDS)
def test_a_video_configuration_does_not_hide_the_times(kind: models.Kind, patched: None) -> None:
    """Where a release hands it on to ``transformers``, stock samples Qwen3-VL's frames twice, and writes the
    times of a clip of 24 frames a second."""
    scene, folder = SCENES["one video"], models.ensure(kind)
    processor = processors.build(kind, mm_process_config={"video": {"fps": 1}})
    result = films.attempt(processor, rollouts.tokenize(folder, scene.text), scene)
    made = films.items(result, "video_grid_thw")
    assert made[0, 0] == 2, "four seconds at one frame each"
    own = Request(result.input_ids, scene, result.input_ids, None, made, films.seconds(scene, made))
    check(folder, processor, own)
    if kind == "qwen3_vl":
        text = reference.processor(folder).tokenizer.decode(result.input_ids)
        # Of 16 frames at 4 a second stock takes the first, the last and two between, rounded down.
        assert ("<0.6 seconds>" in text, "<3.1 seconds>" in text) == (True, True)


def test_stock_does_not_read_the_configuration_of_a_request(folder: Path, processor: Any) -> None:
    """0.5.19 has ``video_config``, 0.5.23 ``mm_processor_kwargs``. If this fails, say so in the docs."""
    made = films.of_server(folder, SCENES["one video"])
    fields = {"video_config": {"fps": 1}, "mm_processor_kwargs": {"fps": 1}}
    try:
        stock = processors.process(processor, made.scene.text, None, [made.scene.clips[0].data], **fields)
    except IndexError:
        assert not tells_times()
        return
    assert films.items(stock, "video_grid_thw").tolist() == made.video_grids.tolist() or not tells_times()


@needs_config
def test_the_rate_of_the_servers_configuration(as_hf: None) -> None:
    scene = SCENES["one video"]
    processor = processors.build("qwen3_vl", mm_process_config={"video": {"fps": 1}})
    wanted = reference.expand(models.ensure("qwen3_vl"), scene.text, (), scene.clips, fps=1)
    result = films.served(processor, wanted.input_ids, scene)
    assert result.input_ids == wanted.input_ids
    assert films.items(result, "video_grid_thw").tolist() == wanted.video_grids.tolist()
    assert wanted.video_grids[0, 0] == 2, "at two frames a second there are four groups"


@needs_config
def test_sizes_in_the_servers_configuration_are_refused_at_start(as_hf: None) -> None:
    config = {"video": {"max_pixels": 100_000, "fps": 2}}
    with pytest.raises(deepeyes_patch.IncompatibleSGLangError, match="sets max_pixels for videos"):
        processors.build("qwen3_vl", mm_process_config=config)


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_very_short_clips_follow_transformers(
    frames: int, folder: Path, kind: models.Kind, processor: Any, as_hf: None
) -> None:
    """Served as ``transformers`` does where it accepts the clip, refused where it does not."""
    scene = Scene(SCENES["one video"].text, [Clip(frames, 224, 224, 2)], [])
    try:
        wanted = films.of_transformers(folder, scene)
    except (ValueError, ZeroDivisionError, RuntimeError):
        outcome = films.attempt(processor, rollouts.tokenize(folder, scene.text), scene)
        assert isinstance(outcome, ValueError)  # ours, or transformers' own
        return
    check(folder, processor, wanted)


def test_uninstalling_leaves_stock_sampling(folder: Path, kind: models.Kind, processor: Any) -> None:
    scene = SCENES["one video"]

    def ids() -> Any:
        outcome = films.attempt(processor, scene.text, scene)
        return repr(outcome) if isinstance(outcome, Exception) else outcome.input_ids

    stock = ids()
    deepeyes_patch.install(["processor", "video"])
    changed = ids()
    deepeyes_patch.uninstall()
    after = ids()
    deepeyes_patch.install(["processor"])
    try:
        repaired = ids()
    finally:
        deepeyes_patch.uninstall()
    assert changed == films.of_transformers(folder, scene).ids != stock
    assert after == repaired == stock
