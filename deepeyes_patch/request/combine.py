"""The HF processor runs, and the caller's ids replace its re-tokenized ids.

SGLang's own code then computes offsets, item splits, padded ids and M-RoPE positions from the caller's ids:
it finds them in the place of the re-tokenized ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids import video_times
from deepeyes_patch.ids.request import Resolution
from deepeyes_patch.ids.spans import GridTHW
from deepeyes_patch.observe import outcomes
from deepeyes_patch.request import channels, encoded, frames, grids, preprocessed
from deepeyes_patch.request.scope import Scope, current, entered, noted, pretokenized
from deepeyes_patch.seams.wrapping import Call


def combine(call: Call) -> Any:
    """``process_and_combine_mm_data``: SGLang makes items and ids, on a worker thread from 0.5.17 on."""
    base_output = call.arguments["base_output"]
    frames.unpack(base_output)
    scope = noted(base_output) or pretokenized()
    if scope is None:
        return call.proceed()
    with entered(scope):
        if not scope.is_preprocessed:
            return call.proceed()
        return _combine_preprocessed(call, scope)


def _combine_preprocessed(call: Call, scope: Scope) -> Any:
    image_grids = _known(preprocessed.grids_of(preprocessed.IMAGES, scope.images))
    resolution = scope.resolve(image_grids, _known(scope.video_grids))
    items, input_ids, hf_output = call.proceed()
    # Up to 0.5.12.post1, grids and seconds of preprocessed items reach get_rope_index only through this
    # output. Without them, images and videos get text positions. Later releases take the first item for it.
    made: dict[str, Any] = {} if hf_output is None else {**hf_output}
    if image_grids:
        made["image_grid_thw"] = torch.tensor(image_grids)
    if scope.video_grids:
        made["video_grid_thw"] = torch.tensor(_known(scope.video_grids))
    if None not in (seconds := scope.given_seconds) and seconds:
        made[preprocessed.SECONDS] = seconds
    hf_output = SimpleNamespace(**made) if hf_output is None else made
    return items, _tensor(resolution, input_ids), hf_output


def _tensor(resolution: Resolution, like: torch.Tensor) -> torch.Tensor:
    """The ids of a resolution, [T], of the type and device of SGLang's ids. SGLang may change them."""
    return torch.from_numpy(resolution.values).to(like, copy=True)


def _known(video_grids: Sequence[GridTHW | None]) -> list[GridTHW]:
    return [grid for grid in video_grids if grid is not None]


def collect_items(call: Call) -> Any:
    """``_process_and_collect_mm_items``: the HF processor makes ids; we return the caller's ids instead."""
    scope = pretokenized()
    items, input_ids, hf_output = call.proceed()
    if scope is None:
        return items, input_ids, hf_output
    image_grids = grids.rows(hf_output.get("image_grid_thw"))
    if scope.request.audio_spans:
        scope.read_audio(input_ids.flatten().tolist(), hf_output["feature_attention_mask"].sum(dim=-1))
    if not scope.request.video_count:
        return items, _tensor(scope.resolve(image_grids), input_ids), hf_output
    video_grids = grids.rows(hf_output["video_grid_thw"], "video_grid_thw")
    raw = [row for row, given in zip(video_grids, scope.video_grids, strict=False) if given is None]
    if raw and len(video_grids) == len(scope.video_grids):
        scope.read_video_blocks(input_ids.tolist(), raw)
    # On a worker thread, use the tokenizer of that thread's processor clone: no other thread uses it.
    tokenizer = getattr(call.get("processor"), "tokenizer", None)
    resolution = scope.resolve(image_grids, video_grids, tokenizer)
    if isinstance(hf_output.get(preprocessed.SECONDS), torch.Tensor):
        # 0.5.4 - 0.5.6.post2 evaluate `if second_per_grid_ts:`, which raises for a tensor with several
        # elements.
        hf_output[preprocessed.SECONDS] = hf_output[preprocessed.SECONDS].tolist()
    return items, _tensor(resolution, input_ids), hf_output


def call_hf_processor(call: Call) -> Any:
    """``process_mm_data``: SGLang calls the HF processor. Stock drops the times of many videos.

    Preprocessed images and videos join its output here, each in its place, as if it had made them.
    """
    scope = pretokenized()
    if scope is None:
        return _with_times(call, None) if outcomes.is_patched("video") else call.proceed()
    channels.name_order(call)
    hf_output = _with_times(call, scope) if scope.request.video_count else call.proceed()
    seconds = scope.given_seconds
    made = iter(hf_output.get(preprocessed.SECONDS, ()))
    for kind, items in ((preprocessed.IMAGES, scope.images), (preprocessed.VIDEOS, scope.videos)):
        if any(map(preprocessed.is_preprocessed, items)):
            hf_output[kind.pixels], hf_output[kind.grid] = preprocessed.merged(
                kind, items, hf_output.get(kind.pixels), hf_output.get(kind.grid)
            )
    if any(second is not None for second in seconds):
        hf_output[preprocessed.SECONDS] = torch.tensor(
            [float(next(made)) if second is None else second for second in seconds]
        )
    return hf_output


def _with_times(call: Call, scope: Scope | None) -> Any:
    clips = call.arguments.get("videos") or []
    times = [metadata for clip in clips if (metadata := frames.noted(clip)) is not None]
    if not times or len(times) != len(clips):
        return call.proceed()
    if scope is not None:
        raw = [index for index, grid in enumerate(scope.video_grids) if grid is None]
        scope.video_times = dict(zip(raw, times, strict=False))
    _hand_times_on(call, clips)
    hf_output = call.proceed()
    if hf_output.get(preprocessed.SECONDS) is not None:
        # `transformers` 4 makes them from a rate for the whole call, and does not read the metadata.
        size = call.instance._processor.video_processor.temporal_patch_size
        hf_output[preprocessed.SECONDS] = torch.tensor(
            [video_times.seconds_per_grid(metadata, size) for metadata in times]
        )
    return hf_output


def _hand_times_on(call: Call, clips: list[Any]) -> None:
    # Not the copies in `Scope.video_times`: some releases of the HF processor change the copy that they get.
    own: dict[str, Any] = {
        "video_metadata": [frames.noted(clip) for clip in clips],
        "do_sample_frames": False,
    }
    options = call.arguments.get("kwargs", {})
    config = options.get("processor_video_config")
    if getattr(call.instance, "video_config", None) if config is None else config:
        # SGLang hands its configuration on as ``videos_kwargs``. If a call has ``videos_kwargs``,
        # ``transformers`` ignores the same arguments of the call itself.
        own = {"videos_kwargs": {**options.get("videos_kwargs", {}), **own}}
    rest = {
        name: value for name, value in options.items() if name not in ("video_metadata", "do_sample_frames")
    }
    call.arguments["kwargs"] = {**rest, **own}


def find_offsets(call: Call) -> Any:
    """``get_mm_items_offset``: for preprocessed items, no other wrapper runs before the offsets are made."""
    scope = pretokenized()
    if scope is not None and scope.resolution is not None and scope.is_preprocessed:
        call.arguments["input_ids"] = torch.from_numpy(scope.resolution.values).clone()
    return call.proceed()


def build_ids(call: Call) -> Any:
    """``build_input_ids`` (artifact path, encoder disaggregation): SGLang expands placeholders."""
    if (scope := pretokenized()) is not None:
        if scope.encoded is not None and scope.encoded.video_grids:
            return encoded.build_untimed_ids(call, scope)
        scope.resolve(grids.rows(call.arguments["img_grid_thw"]))
        call.arguments["prompt"] = scope.request.collapsed()
    return call.proceed()


def compute_positions(call: Call) -> Any:
    """``get_rope_index``: give it what it needs to read the caller's ids.

    It reads the token after each ``vision_start``, even after a last ``vision_start``. If it raises although
    ids and media match, this SGLang does not support the model.
    """
    scope = pretokenized()
    if scope is None:
        if outcomes.is_patched("video") and current() is not None:
            _take_groups_apart(call)
        return call.proceed()
    ids, start = call.arguments["input_ids"], call.arguments["vision_start_token_id"]
    ends_open = ids.shape[-1] > 0 and int(ids[0, -1]) == start
    if ends_open:
        # One more text token changes neither the positions before it nor the delta.
        call.arguments["input_ids"] = torch.cat([ids, ids.new_tensor([[start + 1]])], dim=1)
    if scope.request.video_count:
        _take_groups_apart(call)
    if scope.audio_frames is not None:
        # Stock names the frames of the first audio alone, and then fails over the second one beside an image.
        kwargs = call.arguments["kwargs"] = {**call.arguments.get("kwargs", {})}
        kwargs["audio_seqlens"] = scope.audio_frames
    try:
        positions, delta = call.proceed()
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and type(error) not in (RuntimeError, NotImplementedError):
            raise  # torch's own: no memory left, a device that failed
        raise RefusedRequest(
            "unsupported",
            f"the get_rope_index of this SGLang has no M-RoPE positions for these images or videos of model "
            f"type {scope.model.model_type}, and raised {type(error).__name__}: {error}",
        ) from error
    return positions[..., :-1] if ends_open else positions, delta


def _take_groups_apart(call: Call) -> None:
    """Give a grid of its own to each group of frames that has a span of its own (Qwen3-VL).

    ``get_rope_index`` needs that. From 0.5.3.post2 on it does so itself, for the model types that it knows.
    Grids that have been taken apart stay as they are.
    """
    video_grids = grids.rows(call.arguments.get("video_grid_thw"), "video_grid_thw")
    ids, token = call.arguments["input_ids"][0], call.arguments["video_token_id"]
    begins = (ids[:-1] == call.arguments["vision_start_token_id"]) & (ids[1:] == token)
    if video_grids and int(begins.sum()) == sum(t for t, _, _ in video_grids):
        apart = [(1, h, w) for t, h, w in video_grids for _ in range(t)]
        call.arguments["video_grid_thw"] = torch.tensor(apart, device=ids.device)
