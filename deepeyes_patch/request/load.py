"""SGLang loads images and videos, and chooses the frames of a video."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from deepeyes_patch.observe import outcomes
from deepeyes_patch.request import frames, preprocessed
from deepeyes_patch.request.scope import Scope, current, note, pretokenized
from deepeyes_patch.seams.families import model_of
from deepeyes_patch.seams.wrapping import Call

# The only factor of an image's sides (patch_size * spatial_merge_size) that ``resize_image_async`` knows.
_RESIZE_FACTOR = 28


def load_media(call: Call) -> Any:
    """``load_mm_data`` and its two variants: SGLang loads the media of a prompt.

    Stock decodes the ids, searches the text for placeholders and tokenizes it again. Here the loader gets one
    placeholder for each image, video and audio, and nothing else: its text would be thrown away. Preprocessed
    ones are left out if raw ones stand beside them; `combine.call_hf_processor` puts them in again.
    """
    scope = pretokenized()
    if scope is None:
        return call.proceed()
    images, videos = scope.raw
    if scope.is_preprocessed:
        images = preprocessed.joined(preprocessed.IMAGES, scope.images)
        videos = preprocessed.joined(preprocessed.VIDEOS, scope.videos)
    call.arguments["prompt"] = _placeholders(scope, len(images), len(videos))
    call.arguments["image_data"], call.arguments["video_data"] = images, videos
    loading = call.proceed()
    return _noted_later(loading, scope) if inspect.isawaitable(loading) else note(loading, scope)


def _placeholders(scope: Scope, image_count: int, video_count: int) -> str:
    processor, request = scope.processor, scope.request
    prompt: str = processor.mm_tokens.image_token * image_count
    if video_count:
        ids = [request.tokens.vision_start, request.tokens.video, request.tokens.vision_end]
        prompt += processor._processor.tokenizer.decode(ids) * video_count
    if request.audio_spans:
        ids = [request.tokens.audio_start, request.tokens.audio, request.tokens.audio_end]
        prompt += processor._processor.tokenizer.decode(ids) * len(request.audio_spans)
    return prompt


async def _noted_later(loading: Awaitable[Any], scope: Scope) -> Any:
    return note(await loading, scope)


async def sample_video(call: Call) -> Any:
    """``preprocess_video``: SGLang takes frames out of an open clip."""
    scope, decoder = current(), call.arguments["vr"]
    as_hf = scope is not None and _hf_chooses_frames(scope.processor)
    if isinstance(scope, Scope) and preprocessed.is_preprocessed(decoder):
        return frames.Sampled(decoder, None)
    if scope is None or not (as_hf or isinstance(scope, Scope)) or not frames.is_decoder(decoder):
        # Without a scope, another model's processor runs, which imports this function from `qwen_vl`.
        return await call.proceed()
    if as_hf:
        config = call.get("video_config") or {}
        sampled: Any = frames.sample(decoder, scope.processor._processor.video_processor, config)
    else:
        call.arguments["vr"] = watched = frames.Watched(decoder)
        sampled = await call.proceed()
        if not isinstance(sampled, tuple):
            # Up to 0.5.3.post3, SGLang returns the frames alone.
            frames.note(sampled, watched.metadata())
            return sampled
    frames.note(*sampled)
    return sampled


def _hf_chooses_frames(processor: Any) -> bool:
    """Whether ``video`` is on for a model. It is off for omni models, which pair frames with sound."""
    return outcomes.is_patched("video") and getattr(processor, "audio_token_id", None) is None


async def resize_image(call: Call) -> Any:
    """``resize_image_async`` (up to 0.5.5.post1): SGLang rounds the sides of an image to multiples of 28.

    This step is left out if the HF processor has another factor. An image that is resized twice is blurred,
    and gets another grid than ``transformers`` gives it.
    """
    scope = current()
    model = None if scope is None else model_of(scope.processor)
    if model is None or model.side_factor in (None, _RESIZE_FACTOR):
        return await call.proceed()
    return call.arguments["image"]
