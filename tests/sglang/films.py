"""Pre-tokenized requests with videos, with what must come of them.

Ids come from ``transformers``, which gets the clip, or the frames that SGLang takes out of it; positions from
``transformers``' ``get_rope_index`` with seconds computed here from the clip.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.lab import clips, processors, reference
from tests.lab.clips import Clip
from tests.sglang import rollouts
from tests.sglang.rollouts import IMAGE, VIDEO_PAD, VISION_END, VISION_START, picture

VIDEO = f"{VISION_START}{VIDEO_PAD}{VISION_END}"
PICTURES = [picture(448, 224), picture(448, 448)]


@dataclass(frozen=True)
class Scene:
    """A prompt with one placeholder per image and video, and its media."""

    text: str
    clips: list[Clip]
    images: list[Image.Image]


def _turn(media: str) -> str:
    return f"<|im_start|>user\n{media}What happens in it, and when?<|im_end|>\n<|im_start|>assistant\n"


def _answer() -> str:
    return "The object leaves the frame, so I will look again.<|im_end|>\n"


SCENES: dict[str, Scene] = {
    "one video": Scene(_turn(VIDEO), [clips.SQUARE], []),
    "two videos": Scene(_turn(VIDEO) + _answer() + _turn(VIDEO), [clips.SQUARE, clips.SLOW], []),
    "adjacent videos": Scene(_turn(VIDEO + VIDEO), [clips.SLOW, clips.SQUARE], []),
    "image, then video": Scene(_turn(IMAGE) + _answer() + _turn(VIDEO), [clips.SQUARE], PICTURES[:1]),
    "videos among images": Scene(
        _turn(VIDEO + IMAGE) + _answer() + _turn(IMAGE + VIDEO), [clips.SQUARE, clips.SLOW], PICTURES
    ),
}
# Seconds that are no whole number.
BROKEN_SECONDS = {
    "wide": Scene(_turn(VIDEO), [clips.WIDE], []),
    "long and wide": Scene(_turn(VIDEO) + _answer() + _turn(VIDEO), [clips.LONG, clips.WIDE], []),
}


@dataclass(frozen=True)
class Request:
    """What the caller sends, and what the model must see.

    ``grids`` and ``video_grids`` int64 [N, 3], or None; ``seconds`` between frame groups, for each video;
    ``pixels`` and ``video_pixels`` what the HF processor makes of images and videos, where it is asked.
    """

    ids: list[int]
    scene: Scene
    expected_ids: list[int]
    grids: torch.Tensor | None
    video_grids: torch.Tensor
    seconds: list[float]
    pixels: torch.Tensor | None = None
    video_pixels: torch.Tensor | None = None


def of_server(folder: Path, scene: Scene) -> Request:
    """Expanded as ``transformers`` does it with the frames that this release takes, and their times."""
    taken = [processors.run(_taken(clip)) for clip in scene.clips]
    done = reference.processor(folder)(
        text=[scene.text],
        images=list(scene.images) or None,
        videos=[video for video, _ in taken],
        video_metadata=[metadata for _, metadata in taken],
        do_sample_frames=False,
        return_tensors="pt",
    )
    ids, made = done["input_ids"][0].tolist(), done["video_grid_thw"]
    pixels = (done.get("pixel_values"), done["pixel_values_videos"])
    return Request(ids, scene, ids, done.get("image_grid_thw"), made, seconds(scene, made), *pixels)


class _Clip:
    """An open clip for releases that do not say which frames they take."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.reader)

    def get_avg_fps(self) -> float:
        return self.reader.get_avg_fps()

    def get_batch(self, indices: list[int]) -> Any:
        self.taken = indices
        return self.reader.get_batch(indices)


async def _taken(clip: Clip) -> tuple[torch.Tensor, dict[str, Any]]:
    """The frames that SGLang takes out of a clip, and what ``transformers`` has to know of them."""
    from sglang.srt.utils import load_video

    reader: Any = load_video(clip.data, use_gpu=False)
    if not tells_times():
        reader = _Clip(reader)
    made = await importlib.import_module(processors.MODULE).preprocess_video(reader)
    video, indices = (made, reader.taken) if not tells_times() else (made[0], made[1]["frames_indices"])
    return video, {
        "fps": clip.fps,
        "total_num_frames": clip.frames,
        "duration": clip.frames / clip.fps,
        "frames_indices": list(map(int, indices)),
    }


def tells_times() -> bool:
    """Whether this release tells the HF processor the times of frames (0.5.4 and later)."""
    module = inspect.getmodule(processors.processor_class())
    return "video_metadata" in inspect.getsource(module)


def of_transformers(folder: Path, scene: Scene) -> Request:
    """Expanded as a trainer keeps it."""
    done = reference.expand(folder, scene.text, scene.images, scene.clips)
    assert done.video_grids is not None
    ids, made = done.input_ids, done.video_grids
    return Request(ids, scene, ids, done.grids, made, seconds(scene, made))


def seconds(scene: Scene, grids: torch.Tensor) -> list[float]:
    """First principles: a clip lasts frames / fps seconds, spread evenly over its groups of two frames."""
    groups = grids[:, 0].tolist()
    return [clip.frames / clip.fps / t for clip, t in zip(scene.clips, groups, strict=True)]


def short(folder: Path, request: Request) -> Request:
    return replace(request, ids=rollouts.tokenize(folder, request.scene.text))


def shortened(folder: Path, request: Request, which: set[int]) -> Request:
    """The videos in ``which`` with one placeholder, everything else expanded."""
    own = blocks(folder, request)
    ids, tokens = list(request.ids), rollouts.vision(folder)
    for index in sorted(which, reverse=True):
        first, stop = own[index]
        ids[first:stop] = [tokens.start, tokens.video, tokens.end]
    return replace(request, ids=ids)


def blocks(folder: Path, request: Request) -> list[tuple[int, int]]:
    """(first, stop) of what stands for each video, times and outer markers included."""
    ids, start = request.ids, rollouts.vision(folder).start
    timed = not folder.name.startswith("qwen2_5")
    decode = reference.processor(folder).tokenizer.decode
    runs = iter(rollouts.runs_of(rollouts.vision(folder).video, ids))
    found = []
    for t, _, _ in request.video_grids.tolist():
        own = [next(runs) for _ in range(t if timed else 1)]
        first, stop = own[0][0] - 1, own[-1][1] + 2
        if timed:
            while not decode(ids[first : own[0][0] - 1]).startswith("<"):
                first -= 1
            outer = ids[first - 1] == start
            first, stop = first - outer, stop + outer
        found.append((first, stop))
    return found


def drifted(folder: Path, request: Request, seed: int = 0) -> Request:
    """Some tokens of the text, times included, split in two: the same text, other ids."""
    splits = rollouts._splits(folder)
    choices = [i for i, token in enumerate(request.ids) if token in splits]
    chosen = set(random.Random(seed).sample(choices, k=min(8, len(choices))))
    ids = [
        piece for i, token in enumerate(request.ids) for piece in (splits[token] if i in chosen else (token,))
    ]
    assert ids != request.ids
    return replace(request, ids=ids, expected_ids=ids)


SHAPES: dict[str, Callable[[Path, Request], Request]] = {
    "expanded": lambda folder, request: request,
    "drifted": drifted,
    "short": short,
    "first short": lambda folder, request: shortened(folder, request, {0}),
    "last short": lambda folder, request: shortened(folder, request, {len(request.scene.clips) - 1}),
}


def served(processor: Any, prompt: Any, scene: Scene) -> processors.Processed:
    videos = [clip.data for clip in scene.clips]
    return processors.process(processor, prompt, list(scene.images) or None, videos)


def attempt(processor: Any, prompt: Any, scene: Scene) -> Any:
    """The result, or the exception in its place; some stock releases never return."""
    videos = [clip.data for clip in scene.clips]
    work = processors.process_async(processor, prompt, list(scene.images) or None, videos)
    try:
        return processors.run(asyncio.wait_for(work, 20))
    except (AssertionError, LookupError, RuntimeError, TimeoutError, TypeError, ValueError) as error:
        return error


def items(result: processors.Processed, name: str) -> torch.Tensor | None:
    found = [
        torch.as_tensor(g).reshape(-1, 3)
        for i in result.mm_items
        if (g := getattr(i, name, None)) is not None
    ]
    return torch.cat(found) if found else None


def features(result: processors.Processed, name: str) -> torch.Tensor:
    """The features of the items with a grid of this name, in order."""
    return torch.cat([item.feature for item in result.mm_items if getattr(item, name, None) is not None])


def keeps_fractions(folder: Path) -> bool:
    """Whether the installed ``transformers`` places frames that are no whole seconds apart.

    4.57 to 5.12 cut the seconds to whole ones, against the model's paper; 5.19 does not.
    """
    tokens = rollouts.vision(folder)
    ids = [tokens.start, tokens.video, tokens.video, tokens.end]
    grid, seconds = torch.tensor([[2, 2, 2]]), torch.tensor([1.5])
    found, _ = reference.positions(folder, ids, None, grid, second_per_grid_ts=seconds)
    return found[0, 1:3].tolist() == [1, 4]


def assert_exact(folder: Path, result: Any, request: Request) -> None:
    """The result is what the request's own ids demand, in every part that the model reads."""
    tokens = rollouts.vision(folder)
    assert result.input_ids == request.expected_ids
    images, videos = (
        rollouts.runs_of(tokens.image, request.expected_ids),
        rollouts.runs_of(tokens.video, request.expected_ids),
    )
    by_kind: dict[str, list[Any]] = {"image_grid_thw": [], "video_grid_thw": []}
    for item in result.mm_items:
        (name,) = (name for name in by_kind if getattr(item, name, None) is not None)
        by_kind[name] += [tuple(pair) for pair in item.offsets]
        patches = int(torch.as_tensor(getattr(item, name)).reshape(-1, 3).prod(dim=1).sum())
        assert item.feature.shape[0] == patches
        assert sum(last - first + 1 for first, last in item.offsets) * 4 == patches
    assert by_kind == {"image_grid_thw": images, "video_grid_thw": videos}
    for name, grids in (("image_grid_thw", request.grids), ("video_grid_thw", request.video_grids)):
        made = items(result, name)
        assert (made is None) == (grids is None)
        assert made is None or torch.equal(made, grids)
    more = {}
    if folder.name.startswith("qwen2_5"):
        more["second_per_grid_ts"] = torch.tensor(request.seconds)
    # One text token more changes nothing before it, and transformers 4 reads past a last vision_start.
    positions, delta = reference.positions(
        folder, [*request.expected_ids, 0], request.grids, request.video_grids, **more
    )
    if more and not keeps_fractions(folder):
        groups = request.video_grids[:, 0].tolist()
        for (first, last), t, interval in zip(videos, groups, request.seconds, strict=True):
            # First principles: two positions a second, rounded down, the same for a whole group.
            steps = torch.tensor([int(i * 2 * interval) for i in range(t)])
            times = steps.repeat_interleave((last - first + 1) // t)
            positions[0, first : last + 1] = positions[1, first] + times
    assert torch.equal(result.mrope_positions, positions[:, :-1])
    assert result.mrope_position_delta == delta
    if result.padded_input_ids is not None:
        assert len(result.padded_input_ids) == len(request.expected_ids)
        media = (tokens.image, tokens.video)
        for padded, token in zip(result.padded_input_ids, request.expected_ids, strict=True):
            assert (padded != token) == (token in media)
