"""What the installed ``transformers`` makes of a prompt: the expected values of the tests.

Nothing here imports SGLang. Every function takes the model's folder; what it loads from there is
kept for the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepeyes_patch.verification import expected
from tests.lab import flags

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from tests.lab.clips import Clip

# In the folder of a model that `transformers` has not: the configuration of one with the same positions.
LIKE = "like"
# What SGLang samples videos at; Qwen2.5-VL's processor takes all frames unless it is told.
FPS = 2


@dataclass(frozen=True)
class Expanded:
    """A prompt as the model sees it.

    ``input_ids`` [T]; ``grids`` int64 [images, 3] (t, h, w in patches); ``pixel_values`` float32
    [patches, channels * temporal * patch * patch]. The last two are None without images. ``video_grids``
    and ``video_values`` are the same for videos, ``seconds`` float32 [videos] what Qwen2.5-VL has of them.
    """

    input_ids: list[int]
    grids: torch.Tensor | None
    pixel_values: torch.Tensor | None
    video_grids: torch.Tensor | None = None
    video_values: torch.Tensor | None = None
    seconds: torch.Tensor | None = None


@cache
def processor(folder: Path) -> Any:
    """Slow or fast as the lab's servers of this release use it: on 0.5.3 the two disagree about bounds."""
    from transformers import AutoProcessor

    slow = flags.installed().server_args.get("disable_fast_image_processor", False)
    return AutoProcessor.from_pretrained(folder, **({"use_fast": False} if slow else {}))


@cache
def model(folder: Path) -> Any:
    """The model in float32 on the CPU, with sdpa attention.

    Servers compute in bf16, and so could this. Then the rounding of both would count: in bf16, transformers
    is up to 0.006 off from itself in float32.
    """
    import torch
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


@cache
def _rope_owner(folder: Path) -> Any:
    """Whose ``get_rope_index`` counts for the model, and whose ``config`` names its tokens.

    Without weights it is built on no device: positions depend on the configuration alone.
    """
    if (folder / "model.safetensors").exists():
        return model(folder).model
    like = folder / LIKE
    return expected.rope_owner(like if like.exists() else folder)


def expand(
    folder: Path, text: str, images: Sequence[Image] = (), clips: Sequence[Clip] = (), fps: float = FPS
) -> Expanded:
    """Text with one placeholder per image and video to ids with one per image and video token.

    Videos are sampled at ``fps`` frames a second.
    """
    videos: dict[str, Any] = {}
    if clips:
        videos = {
            "videos": [clip.decoded() for clip in clips],
            "video_metadata": [
                {"fps": clip.fps, "total_num_frames": clip.frames, "duration": clip.frames / clip.fps}
                for clip in clips
            ],
            "do_sample_frames": True,
            "fps": fps,
        }
    done = processor(folder)(text=[text], images=list(images) or None, return_tensors="pt", **videos)
    return Expanded(
        input_ids=done["input_ids"][0].tolist(),
        grids=done.get("image_grid_thw"),
        pixel_values=done.get("pixel_values"),
        video_grids=done.get("video_grid_thw"),
        video_values=done.get("pixel_values_videos"),
        seconds=done.get("second_per_grid_ts"),
    )


def positions(
    folder: Path,
    input_ids: Sequence[int],
    grids: torch.Tensor | None = None,
    video_grids: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, int]:
    """M-RoPE positions int64 [3, T] (t, h, w) and the delta for what is generated after them."""
    if video_grids is not None and transformers_version() == "5.3.0":
        # Its own counts images among the seconds of videos (Qwen2.5-VL), and never splits a video into its
        # groups of frames (Qwen3-VL).
        seconds = more.get("second_per_grid_ts")
        if _rope_owner(folder).config.model_type == "qwen2_vl":  # one position from a group to the next
            seconds = video_grids.new_ones(len(video_grids))
        return defined_positions(folder, input_ids, grids, video_grids, seconds)
    return expected.positions(_rope_owner(folder), input_ids, grids, video_grids, **more)


def transformers_version() -> str:
    return metadata.version("transformers")


def defined_positions(
    folder: Path,
    input_ids: Sequence[int],
    grids: torch.Tensor | None = None,
    video_grids: torch.Tensor | None = None,
    seconds: torch.Tensor | None = None,
) -> tuple[torch.Tensor, int]:
    """`positions`, token by token as the Qwen2-VL paper (section 2.1) defines them.

    ``seconds`` [videos]: from one group of frames of a Qwen2.5-VL video to the next; without them, each group
    is a picture of its own.
    """
    import torch

    config = _rope_owner(folder).config
    merge = config.vision_config.spatial_merge_size
    per_second = getattr(config.vision_config, "tokens_per_second", 1)
    rows = [] if video_grids is None else video_grids.tolist()
    if seconds is None:
        groups = iter([(1, h, w, 0.0) for t, h, w in rows for _ in range(t)])
    else:
        groups = iter([(*row, float(own)) for row, own in zip(rows, seconds, strict=True)])
    images = iter([] if grids is None else [(*row, 0.0) for row in grids.tolist()])
    found: list[tuple[int, int, int]] = []
    start = 0
    while len(found) < len(input_ids):
        token = input_ids[len(found)]
        if token == config.image_token_id:
            t, h, w, interval = next(images)
        elif token == config.video_token_id:
            t, h, w, interval = next(groups)
        else:
            t, h, w, interval = 1, merge, merge, 0.0
        own = [
            (start + int(i * interval * per_second), start + y, start + x)
            for i in range(t)
            for y in range(h // merge)
            for x in range(w // merge)
        ]
        found += own
        start = max(map(max, own)) + 1
    return torch.tensor(found).T, start - len(input_ids)


def logprobs(
    folder: Path,
    input_ids: Sequence[int],
    grids: torch.Tensor | None,
    pixel_values: torch.Tensor | None,
    continuation: Sequence[int],
) -> torch.Tensor:
    """Log-probs float32 [N] that the model gives to ``continuation`` [N] after the prompt."""
    return scores(folder, input_ids, grids, pixel_values, continuation)[0]


def scores(
    folder: Path,
    input_ids: Sequence[int],
    grids: torch.Tensor | None,
    pixel_values: torch.Tensor | None,
    continuation: Sequence[int],
    video_grids: torch.Tensor | None = None,
    video_values: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`logprobs`, and how far each is below that of the most probable token there, float32 [N] both.

    The second is zero for greedy decoding, and no more than the noise where two tokens tie.
    """
    ids = [*input_ids, *continuation]
    rows = distributions(folder, ids, grids, pixel_values, video_grids, video_values)
    rows = rows[len(input_ids) - 1 : -1]
    import torch

    found = rows.gather(1, torch.tensor(list(continuation))[:, None])[:, 0]
    return found, rows.max(dim=1).values - found


def greedy(
    folder: Path,
    input_ids: Sequence[int],
    grids: torch.Tensor | None,
    pixel_values: torch.Tensor | None,
    steps: int,
) -> tuple[list[int], torch.Tensor]:
    """The ``steps`` most probable tokens, one after the other, and their log-probs [steps].

    The whole sequence is run anew at each step: no cache and no position delta that could be
    wrong in the same way as what is tested.
    """
    ids, scores = list(input_ids), []
    for _ in range(steps):
        best = distributions(folder, ids, grids, pixel_values)[-1].max(dim=0)
        ids.append(int(best.indices))
        scores.append(best.values)
    import torch

    return ids[len(input_ids) :], torch.stack(scores)


def distributions(
    folder: Path,
    ids: Sequence[int],
    grids: torch.Tensor | None,
    pixel_values: torch.Tensor | None,
    video_grids: torch.Tensor | None = None,
    video_values: torch.Tensor | None = None,
) -> torch.Tensor:
    """Log-probs float32 [T, vocabulary] of what follows each id.

    Videos only of Qwen3-VL, which has their times in the text.
    """
    import torch

    where, _ = positions(folder, ids, grids, video_grids)
    media = {} if grids is None else {"image_grid_thw": grids, "pixel_values": pixel_values}
    if video_grids is not None:
        media |= {"video_grid_thw": video_grids, "pixel_values_videos": video_values}
    with torch.inference_mode():
        out = model(folder)(
            input_ids=torch.tensor([list(ids)]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            position_ids=where[:, None],
            use_cache=False,
            **media,
        )
    return out.logits[0].float().log_softmax(dim=-1)
