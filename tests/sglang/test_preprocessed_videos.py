"""Videos that the caller preprocessed, and preprocessed images and videos beside raw ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deepeyes_patch.errors import RefusedRequest
from tests.lab import clips, models, processors, reference
from tests.lab.clips import Clip
from tests.sglang import films, test_preprocessed
from tests.sglang.films import PICTURES, VIDEO, Request, Scene, assert_exact
from tests.sglang.rollouts import IMAGE

WAYS = ("default", "pool, retokenize")

# SGLang takes all frames of these clips, and nothing resizes them, so `transformers` makes the same ids.
SLOW, OTHER = clips.SLOW, Clip(12, 224, 448, 2, seed=7)
TWO = Scene(films._turn(VIDEO) + films._answer() + films._turn(VIDEO), [clips.WIDE, clips.SQUARE], [])
ALIKE = Scene(
    films._turn(IMAGE + VIDEO) + films._answer() + films._turn(VIDEO + IMAGE), [SLOW, OTHER], PICTURES
)


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases before 0.5.20 pin frames for a GPU even where there is none."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *args, **kwargs: self)


def output(folder: Path, chosen: list[Clip]) -> dict[str, Any]:
    """What the HF processor makes of clips, with their true seconds."""
    done = reference.expand(folder, VIDEO * len(chosen), (), chosen)
    item = {
        "format": "processor_output",
        "pixel_values_videos": done.video_values,
        "video_grid_thw": done.video_grids,
    }
    if done.seconds is not None:
        item["second_per_grid_ts"] = torch.tensor(films.seconds(Scene("", chosen, []), done.video_grids))
    return item


def embedding(folder: Path, chosen: list[Clip]) -> dict[str, Any]:
    made = output(folder, chosen)
    tokens = len(made.pop("pixel_values_videos")) // 4
    feature = torch.arange(tokens * 8, dtype=torch.float32).reshape(tokens, 8)
    return {**made, "format": "precomputed_embedding", "feature": feature}


def picture(folder: Path, *chosen: int) -> dict[str, Any]:
    return test_preprocessed.processor_output(folder, [ALIKE.images[index] for index in chosen])


@dataclass(frozen=True)
class Sent:
    """What goes beside the ids, as a function of the model's folder."""

    images: Callable[[Path], list[Any] | None]
    videos: Callable[[Path], list[Any] | None]


def of(*make: Callable[[Path], Any]) -> Callable[[Path], list[Any] | None]:
    return lambda folder: [one(folder) for one in make] or None


def image(index: int) -> Callable[[Path], Any]:
    return lambda folder: ALIKE.images[index]


def clip(index: int) -> Callable[[Path], Any]:
    return lambda folder: ALIKE.clips[index].data


def images_of(*chosen: int) -> Callable[[Path], Any]:
    return lambda folder: picture(folder, *chosen)


def videos_of(*chosen: int) -> Callable[[Path], Any]:
    return lambda folder: output(folder, [ALIKE.clips[index] for index in chosen])


WAYS_TO_SEND = {
    "both in items of their own": Sent(of(images_of(0, 1)), of(videos_of(0, 1))),
    "both in one item among the images": Sent(
        of(lambda folder: {**picture(folder, 0, 1), **output(folder, ALIKE.clips)}), of()
    ),
    "one item for each": Sent(of(images_of(0), images_of(1)), of(videos_of(0), videos_of(1))),
    "videos, and raw images": Sent(of(image(0), image(1)), of(videos_of(0, 1))),
    "images, and raw videos": Sent(of(images_of(0, 1)), of(clip(0), clip(1))),
    "an image before a raw one": Sent(of(images_of(0), image(1)), of(clip(0), clip(1))),
    "a video after a raw one": Sent(of(image(0), image(1)), of(clip(0), videos_of(1))),
    "all kinds": Sent(of(image(0), images_of(1)), of(videos_of(0), clip(1))),
}


@pytest.mark.parametrize("name", WAYS_TO_SEND)
def test_mixes_are_exact(name: str, folder: Path, processor: Any, patched: None) -> None:
    made = films.of_transformers(folder, ALIKE)
    assert made.ids == films.of_server(folder, ALIKE).ids
    sent, request = WAYS_TO_SEND[name], films.drifted(folder, made)
    result = processors.process(processor, list(request.ids), sent.images(folder), sent.videos(folder))
    assert_exact(folder, result, request)
    done = reference.expand(folder, ALIKE.text, ALIKE.images, ALIKE.clips)
    for grid, pixels in (("image_grid_thw", done.pixel_values), ("video_grid_thw", done.video_values)):
        assert torch.allclose(films.features(result, grid), pixels, atol=0.02)


@pytest.mark.parametrize("name", ["videos, and raw images", "images, and raw videos", "one item for each"])
def test_stock_serves_no_mix(name: str, folder: Path, processor: Any) -> None:
    request, sent = films.drifted(folder, films.of_transformers(folder, ALIKE)), WAYS_TO_SEND[name]
    # Some of them never return.
    assert not exact(folder, processor, request, sent.images(folder), sent.videos(folder), seconds=5)


def exact(
    folder: Path,
    processor: Any,
    request: Request,
    images: Any,
    videos: Any,
    seconds: float = processors.REQUEST_SECONDS,
) -> bool:
    try:
        result = processors.process(processor, list(request.ids), images, videos, seconds=seconds)
        assert_exact(folder, result, request)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("make", [output, embedding])
def test_videos_of_broken_seconds(make: Any, folder: Path, processor: Any, patched: None) -> None:
    if make is embedding and test_preprocessed.takes_any_dict():
        pytest.skip("this release knows no formats: a dict holds what the HF processor made")
    request = films.drifted(folder, films.of_transformers(folder, TWO))
    item = make(folder, TWO.clips)
    before = dict(item)
    result = processors.process(processor, list(request.ids), None, [item])
    if make is embedding:
        rows = torch.cat([item.feature for item in result.mm_items])
        assert torch.equal(rows, item["feature"])
        for held in result.mm_items:  # as `assert_exact` counts them
            held.feature = held.feature.repeat_interleave(4, dim=0)
    assert_exact(folder, result, request)
    assert item.keys() == before.keys()
    assert all(item[key] is before[key] for key in item), "the caller's item was changed"


def test_stock_takes_videos_for_text_up_to_0_5_12(folder: Path, processor: Any) -> None:
    request = films.of_transformers(folder, TWO)
    right = exact(folder, processor, request, None, [output(folder, TWO.clips)])
    assert right == hasattr(processors.processor_class(), "_get_grid_from_output_or_items")


# --- refused ------------------------------------------------------------------------------------------


def without(item: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != name}


REFUSALS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "no grid": (lambda item: without(item, "video_grid_thw"), "of video_data holds no video_grid_thw"),
    "no pixels": (lambda item: without(item, "pixel_values_videos"), "holds no pixel_values_videos or"),
    "too few rows": (
        lambda item: {**item, "pixel_values_videos": item["pixel_values_videos"][:8]},
        r"holds pixel_values_videos of shape \[8, \d+\], and its video_grid_thw demands",
    ),
    "other patches": (
        lambda item: {**item, "pixel_values_videos": item["pixel_values_videos"][:, :9]},
        "this model's patches have",
    ),
    "offsets": (lambda item: {**item, "offsets": [(0, 10**9)]}, "offsets that are not those of the"),
    "sound": (lambda item: {**item, "audio_features": 1}, "holds audio_features; leave them out"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_items_that_contradict_themselves(name: str, folder: Path, processor: Any, patched: None) -> None:
    change, message = REFUSALS[name]
    request = films.of_transformers(folder, films.SCENES["one video"])
    item = change(output(folder, request.scene.clips))
    with pytest.raises(RefusedRequest, match=message):
        processors.process(processor, request.ids, None, [item])


@pytest.mark.parametrize("seconds", [None, [1.0, 1.0], [0.0]])
def test_qwen2_5_vl_needs_the_seconds(seconds: Any, patched: None) -> None:
    folder = models.ensure("qwen2_5_vl")
    request = films.of_transformers(folder, films.SCENES["one video"])
    item = {**output(folder, request.scene.clips), "second_per_grid_ts": seconds}
    with pytest.raises(RefusedRequest, match=r"second_per_grid_ts .*, so the M-RoPE positions of its 1"):
        processors.process(processors.build("qwen2_5_vl"), request.ids, None, [item])


def test_seconds_that_qwen3_vl_does_not_need(patched: None) -> None:
    folder, processor = models.ensure("qwen3_vl"), processors.build("qwen3_vl")
    request = films.of_transformers(folder, films.SCENES["two videos"])
    item = {**output(folder, request.scene.clips), "second_per_grid_ts": [1.0, 1.0]}
    assert_exact(folder, processors.process(processor, request.ids, None, [item]), request)


def test_one_placeholder_is_not_short_for_many(folder: Path, processor: Any, patched: None) -> None:
    request = films.short(folder, films.of_transformers(folder, films.SCENES["one video"]))
    with pytest.raises(RefusedRequest, match=r"video 0 of 1: input_ids hold 1 video placeholders .*makes"):
        processors.process(processor, request.ids, None, [output(folder, request.scene.clips)])


def test_videos_swapped(folder: Path, processor: Any, patched: None) -> None:
    request = films.of_transformers(folder, films.SCENES["two videos"])
    with pytest.raises(RefusedRequest, match="video 0 of 2: input_ids hold"):
        processors.process(processor, request.ids, None, [output(folder, request.scene.clips[::-1])])


def test_embeddings_stand_beside_nothing_raw(folder: Path, processor: Any, patched: None) -> None:
    if test_preprocessed.takes_any_dict():
        pytest.skip("this release knows no formats: a dict holds what the HF processor made")
    request = films.of_transformers(folder, ALIKE)
    with pytest.raises(RefusedRequest, match=r"1 item\(s\) with embeddings beside 2 raw"):
        processors.process(processor, request.ids, ALIKE.images, [embedding(folder, ALIKE.clips)])


def test_raw_ones_may_be_short_beside_preprocessed_ones(folder: Path, processor: Any, patched: None) -> None:
    made = films.of_transformers(folder, ALIKE)
    request = replace(films.shortened(folder, made, {1}), expected_ids=made.ids)
    sent = WAYS_TO_SEND["all kinds"]
    result = processors.process(processor, list(request.ids), sent.images(folder), sent.videos(folder))
    assert_exact(folder, result, request)


def test_a_good_request_after_a_refused_one(folder: Path, processor: Any, patched: None) -> None:
    request = films.of_transformers(folder, films.SCENES["one video"])
    item = output(folder, request.scene.clips)
    with pytest.raises(RefusedRequest):
        processors.process(processor, request.ids, None, [{**item, "video_grid_thw": [[1, 2, 2]]}])
    assert_exact(folder, processors.process(processor, request.ids, None, [item]), request)
