"""Audio of Qwen3-Omni in pre-tokenized requests: every shape of ids, and the refusals.

Ids, lengths and positions are those of the model's processor and ``get_rope_index`` in ``transformers``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from deepeyes_patch.errors import RefusedRequest
from tests.lab import clips, family, processors, reference, sounds
from tests.sglang import rollouts
from tests.sglang.test_processor import PICTURES

if "qwen3_omni_moe" not in family.served():
    pytest.skip("this release has no Qwen3-Omni", allow_module_level=True)

SOUNDS = [sounds.sine(1.3, 440), sounds.sine(3.7, 330), sounds.sine(0.5, 200)]
AUDIO = "<|audio_start|><|audio_pad|><|audio_end|>"
WAYS = ("default", "pool, retokenize")
# A text, and how many sounds and pictures it has.
TEXTS = {
    "one": (f"Hear {AUDIO} and write down the words.", 1, 0),
    "two": (f"Hear {AUDIO} and {AUDIO} and write down the words.", 2, 0),
    "adjacent": (f"Hear {AUDIO}{AUDIO} and write down the words.", 2, 0),
    "beside a picture": (f"See {rollouts.IMAGE} hear {AUDIO} and write down the words.", 1, 1),
    "two beside a picture": (f"Hear {AUDIO} see {rollouts.IMAGE} hear {AUDIO} and write it down.", 2, 1),
    "three beside two pictures": (
        f"{rollouts.IMAGE}{AUDIO}{AUDIO} then {rollouts.IMAGE}{AUDIO} write.",
        3,
        2,
    ),
}


@pytest.fixture(autouse=True)
def torchaudio(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's loader imports it, and calls it for files of another rate only; the lab does not have it."""
    module = ModuleType("torchaudio")
    module.__spec__ = ModuleSpec("torchaudio", None)
    monkeypatch.setitem(sys.modules, "torchaudio", module)


@pytest.fixture
def folder() -> Path:
    return family.ensure("qwen3_omni_moe")


@dataclass(frozen=True)
class Expected:
    """What ``transformers`` makes of a text: ``ids``, ``positions`` int64 [3, T], their ``delta``."""

    short: list[int]
    ids: list[int]
    positions: torch.Tensor
    delta: int


def expected(folder: Path, name: str) -> Expected:
    text, sound_count, picture_count = TEXTS[name]
    hf = reference.processor(folder)
    done = hf(
        text=[text],
        images=PICTURES[:picture_count] or None,
        audio=[sound.samples for sound in SOUNDS[:sound_count]],
        return_tensors="pt",
        padding=True,
    )
    ids = done["input_ids"][0].tolist()
    frames = done["feature_attention_mask"].sum(dim=-1)
    grids = done.get("image_grid_thw")
    positions, delta = reference.positions(folder, ids, grids, use_audio_in_video=False, audio_seqlens=frames)
    return Expected(rollouts.tokenize(folder, text), ids, positions, delta)


def sent(name: str) -> dict[str, Any]:
    _, sound_count, picture_count = TEXTS[name]
    return {
        "images": PICTURES[:picture_count] or None,
        "audio_data": [sound.data for sound in SOUNDS[:sound_count]],
    }


def assert_exact(folder: Path, result: processors.Processed, right: Expected) -> None:
    audio_pad = reference.processor(folder).tokenizer.convert_tokens_to_ids("<|audio_pad|>")
    assert result.input_ids == right.ids
    runs = sorted([*rollouts.spans(folder, right.ids), *rollouts.runs_of(audio_pad, right.ids)])
    assert result.offsets == runs
    assert torch.equal(torch.as_tensor(result.mrope_positions), right.positions.long())
    assert result.mrope_position_delta == right.delta
    if result.padded_input_ids is not None:
        inside = {i for first, last in runs for i in range(first, last + 1)}
        changed = {
            i for i, (a, b) in enumerate(zip(result.padded_input_ids, right.ids, strict=True)) if a != b
        }
        assert changed == inside


@pytest.mark.parametrize("form", ["expanded", "short"])
@pytest.mark.parametrize("name", TEXTS)
def test_exact(name: str, form: str, folder: Path, processor: Any, patched: None) -> None:
    right = expected(folder, name)
    ids = right.ids if form == "expanded" else right.short
    assert_exact(folder, processors.process(processor, ids, **sent(name)), right)


def drifted(folder: Path, ids: list[int]) -> list[int]:
    """The ids with the last word's token in two pieces: they decode to the same text."""
    splits = rollouts._splits(folder)
    where = max(i for i, token in enumerate(ids) if token in splits)
    return [*ids[:where], *splits[ids[where]], *ids[where + 1 :]]


def test_ids_that_the_tokenizer_would_not_make(folder: Path, processor: Any, patched: None) -> None:
    right = expected(folder, "two")
    ids = drifted(folder, right.ids)
    result = processors.process(processor, ids, **sent("two"))
    assert result.input_ids == ids
    assert torch.equal(result.mrope_positions, torch.arange(len(ids)).expand(3, -1))  # audio counts like text


@pytest.mark.parametrize("name", ["one", "two beside a picture"])
def test_stock_fails_over_expanded_ids(name: str, folder: Path, processor: Any) -> None:
    """Newer releases count the placeholders, and raise; older ones leave the ids as they are, or raise."""
    right = expected(folder, name)
    with pytest.raises((ValueError, RuntimeError, LookupError, AssertionError)):
        processors.process(processor, right.ids, **sent(name))


def test_stock_drifts(folder: Path, processor: Any) -> None:
    right = expected(folder, "one")
    ids = drifted(folder, right.short)
    assert processors.process(processor, ids, **sent("one")).input_ids == right.ids


PAD, START = "<|audio_pad|>", "<|audio_start|>"


def with_token(folder: Path, ids: list[int], token: str, change: str) -> list[int]:
    value = reference.processor(folder).tokenizer.convert_tokens_to_ids(token)
    where = ids.index(value)
    return {
        "twice": [*ids[: where + 1], *ids[where:]],
        "left out": [*ids[:where], *ids[where + 1 :]],
        "once more at the end": [*ids, value],
    }[change]


@pytest.mark.parametrize(
    ("token", "change", "message"),
    [
        (PAD, "twice", "audio 0 of 2: input_ids hold 18 audio placeholders .* makes 17"),
        (PAD, "left out", "audio 0 of 2: input_ids hold 16 audio placeholders .* makes 17"),
        (PAD, "once more at the end", "an audio placeholder .* without audio_start"),
        (START, "left out", "without audio_start"),
    ],
)
def test_refused(token: str, change: str, message: str, folder: Path, processor: Any, patched: None) -> None:
    ids = with_token(folder, expected(folder, "two").ids, token, change)
    with pytest.raises(RefusedRequest, match=message):
        processors.process(processor, ids, **sent("two"))


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        ([SOUNDS[0].data], "hold 2 audio span.* and 1 audio"),
        ([sound.data for sound in SOUNDS], "hold 2 audio span.* and 3 audio"),
        (None, "hold an audio placeholder"),
        ([SOUNDS[1].data, SOUNDS[0].data], "audio 0 of 2: input_ids hold 17 .* makes 48"),
        ([{"format": "processor_output"}, SOUNDS[0].data], r"audio_data\[0\] is of type dict"),
        ([b"no sound", SOUNDS[0].data], "an audio could not be loaded"),
    ],
)
def test_other_audio_is_refused(
    audio: Any, message: str, folder: Path, processor: Any, patched: None
) -> None:
    with pytest.raises(RefusedRequest, match=message):
        processors.process(processor, expected(folder, "two").ids, audio_data=audio)


def test_audio_beside_a_video_is_refused(folder: Path, processor: Any, patched: None) -> None:
    text = f"<|vision_start|>{rollouts.VIDEO_PAD}<|vision_end|> hear {AUDIO}"
    with pytest.raises(RefusedRequest, match="audio beside videos"):
        processors.process(
            processor,
            rollouts.tokenize(folder, text),
            videos=[clips.SQUARE.data],
            audio_data=[SOUNDS[0].data],
        )
