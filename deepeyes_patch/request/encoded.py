"""What an encoder sent of a request's images and videos (encoder disaggregation), and the ids that follow.

The encoder sends embeddings and grids. For a video it sends one of two more things:

- Qwen3-VL and later: the time of each group of frames, from the frames that it took. SGLang writes these
  times into the ids.
- Qwen2.5-VL and Qwen3-Omni: the seconds between two groups of frames, computed from the rate that the encoder
  is configured with. Few clips can be sampled at just this rate. So these are not the seconds of the frames
  that the encoder took, and the positions of these frames are unknown here.
"""

from __future__ import annotations

from typing import Any

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.request import grids, media
from deepeyes_patch.request.preprocessed import SECONDS
from deepeyes_patch.request.scope import Encoded, Scope, pretokenized
from deepeyes_patch.seams.families import Model
from deepeyes_patch.seams.wrapping import Call

# The model type whose videos have neither times in the ids nor seconds in the positions.
_UNTIMED = "qwen2_vl"


def received(call: Call, model: Model) -> Encoded:
    """What ``get_mm_data`` gets of the encoder's images and videos.

    Raises
    ------
    RefusedRequest
        There is audio, or a video for which the encoder sent no exact times.
    """
    media.refuse_modalities(audio=call.get("audio_feature_lens"))
    image_grids = grids.rows(call.get("img_grid_thw"))
    video_grids = grids.rows(call.get("video_grid_thw"), "video_grid_thw")
    if not video_grids:
        return Encoded(image_grids, [], [])
    if model.tokens_per_second is not None or call.get(SECONDS) is not None:
        raise RefusedRequest(
            "unsupported",
            f"{len(video_grids)} video(s) with input_ids: for model type {model.model_type}, an encoder "
            f"sends the seconds of its configured rate, not those of the frames that it took, so the M-RoPE "
            f"positions of these frames are unknown. Send the request to a server without encoder "
            f"disaggregation",
        )
    times = call.get("video_timestamps")
    if times is None:
        return Encoded(image_grids, video_grids, [])
    found = [[float(time) for time in own] for own in times]
    for index, (t, h, w) in enumerate(video_grids):
        count = len(found[index]) if index < len(found) else 0
        if count != t:
            raise RefusedRequest(
                "video",
                f"video {index} of {len(video_grids)}: the encoder sent the times of {count} group(s) of "
                f"frames, and its grid_thw {t}x{h}x{w} has {t}",
            )
    return Encoded(image_grids, video_grids, found)


def build_timed_ids(call: Call) -> Any:
    """``build_input_ids_with_timestamps``: SGLang expands placeholders, and writes the times of frames."""
    scope = pretokenized()
    return call.proceed() if scope is None else build(call, scope)


def build_untimed_ids(call: Call, scope: Scope) -> Any:
    """``build_input_ids``, for a request with videos.

    Raises
    ------
    RefusedRequest
        The model wants times in the ids, and this function writes none.
    """
    if scope.model.model_type != _UNTIMED:
        raise RefusedRequest(
            "unsupported",
            f"{scope.request.video_count} video(s) with input_ids: with encoder disaggregation, this SGLang "
            f"writes no times before the frames of a video for model type {scope.model.model_type}. Send the "
            f"request to a server without encoder disaggregation",
        )
    return build(call, scope)


def build(call: Call, scope: Scope) -> Any:
    """Let SGLang expand one placeholder per image and video; put the result into the caller's ids.

    Returns what SGLang's function does: ids, (first, last) of each span, and the modality of each span.
    """
    encoded, tokens = scope.encoded, scope.request.tokens
    assert encoded is not None
    image_count = len(encoded.image_grids)
    call.arguments["prompt"] = [
        *[tokens.vision_start, tokens.image, tokens.vision_end] * image_count,
        *[tokens.vision_start, tokens.video, tokens.vision_end] * len(encoded.video_grids),
    ]
    ids, _, modalities = call.proceed()
    scope.read_video_blocks(ids, encoded.video_grids)
    resolution = scope.resolve(encoded.image_grids, encoded.video_grids)
    spans = [(pair, modality) for pair, modality in zip(resolution.offsets, modalities, strict=False)]
    spans += [(pair, modalities[-1]) for video in resolution.videos for pair in video.offsets]
    spans.sort(key=lambda span: span[0])
    return list(resolution.ids), [pair for pair, _ in spans], [modality for _, modality in spans]
