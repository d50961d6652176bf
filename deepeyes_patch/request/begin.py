"""The outermost methods of SGLang's Qwen-VL processor: where a request begins and ends.

A request whose prompt is a list of ids gets a scope here, which the inner wrappers look for. Text prompts,
and classes that override the outermost method, run SGLang's code alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepeyes_patch.errors import InternalError, RefusedRequest
from deepeyes_patch.ids.request import PretokenizedRequest
from deepeyes_patch.observe import counters
from deepeyes_patch.request import audio, encoded, grids, item_checks, media, media_errors, preprocessed
from deepeyes_patch.request.scope import Scope, TextScope, entered, reception
from deepeyes_patch.request.unserved import unserved_request
from deepeyes_patch.request.verify import verify, verify_unserved
from deepeyes_patch.seams.families import Model, formats_matter, model_of
from deepeyes_patch.seams.wrapping import Call


async def process_request(call: Call) -> Any:
    """``process_mm_data_async``: the tokenizer manager passes a request with its images and videos."""
    processor, prompt = call.instance, call.arguments["input_text"]
    is_text = prompt is None or isinstance(prompt, str)
    model = None if is_text else model_of(processor)
    if model is None:
        with entered(TextScope(processor)):
            result = await call.proceed()
        counters.count(counters.PASSED)
        return result
    arguments = call.arguments
    scope, images = open_scope(processor, model, prompt, arguments["image_data"], arguments["request_obj"])
    # Copies: several releases cut the ids, or take preprocessed items apart.
    arguments["input_text"], arguments["image_data"] = list(scope.request.ids), images
    with entered(scope):
        try:
            result = await call.proceed()
        except Exception as error:
            for cause in media_errors.causes(error):
                if isinstance(cause, (RefusedRequest, InternalError)):
                    raise cause  # noqa: B904  # its context is SGLang's own error
            if media_errors.is_about_media(error):
                raise _unreadable(error, scope, call) from error
            if media_errors.is_about_fetching(error):
                counters.count(counters.NOT_FETCHED)
            raise
    verify(scope, result)
    counters.count(counters.RESTORED)
    return result


def open_scope(
    processor: Any, model: Model, ids: Sequence[int], image_data: Any, request_obj: Any
) -> tuple[Scope, list[Any]]:
    """Check the ids and media of a request. Return its scope, and its images in a new list.

    Parameters
    ----------
    request_obj:
        SGLang's object, for its ``video_data`` and ``audio_data``.

    Raises
    ------
    RefusedRequest
        The request cannot be served, whatever SGLang makes of it.
    """
    limits = item_checks.Limits(
        model.spatial_merge_size, formats_matter(), model.patch_width, model.tokens_per_second is not None
    )
    video_data = getattr(request_obj, "video_data", None)
    images, videos = preprocessed.parted(
        [] if image_data is None else list(image_data),
        [] if video_data is None else media.as_list(video_data),
    )
    images, videos = media.checked_images(images, limits), media.checked_videos(videos, limits)
    media.refuse_mixed_embeddings(images, videos)
    sounds = getattr(request_obj, "audio_data", None)
    audio_count = audio.count(sounds, model.tokens.audio_start, images, videos)
    image_grids = preprocessed.grids_of(preprocessed.IMAGES, images)
    request = PretokenizedRequest(
        ids,
        model.tokens,
        vocab_size=model.vocab_size,
        image_count=len(image_grids),
        video_count=len(preprocessed.grids_of(preprocessed.VIDEOS, videos)),
        audio_count=audio_count,
        expanded={index for index, grid in enumerate(image_grids) if grid is not None},
    )
    item_checks.refuse_other_offsets(preprocessed.IMAGES, images, request.spans)
    item_checks.refuse_other_offsets(preprocessed.VIDEOS, videos, request.video_spans)
    return Scope(processor, request, model, images, videos), list(images)


def _unreadable(error: Exception, scope: Scope, call: Call) -> RefusedRequest:
    request = scope.request
    came = ["an image"] * bool(call.arguments["image_data"]) + ["a video"] * bool(request.video_count)
    came += ["an audio"] * bool(request.audio_spans)
    return RefusedRequest(
        "media", f"{' or '.join(came)} could not be loaded: {media_errors.shortened(error)}"
    )


def process_embeddings(call: Call) -> Any:
    """``get_mm_data``: a request whose images and videos an encoder has embedded (encoder disaggregation)."""
    try:
        return _process_embeddings(call)
    except Exception as error:
        failure = call.failure(error)
        if isinstance(failure, (RefusedRequest, InternalError)) and (waiting := reception()) is not None:
            waiting.failure = failure
        if failure is error:
            raise
        raise failure from error


def _process_embeddings(call: Call) -> Any:
    model, prompt = model_of(call.instance), call.arguments["prompt"]
    if prompt is None and (waiting := reception()) is not None:
        prompt = _copied(waiting.ids)
    if prompt is None or isinstance(prompt, str):
        return call.proceed()
    call.arguments["prompt"] = prompt
    if model is None:
        unserved = unserved_request(call.instance, prompt)
        unserved.check_placeholders(len(grids.rows(call.get("img_grid_thw"))))
        result = call.proceed()
        verify_unserved(unserved, result)
        return result
    sent = encoded.received(call, model)
    request = PretokenizedRequest(
        prompt,
        model.tokens,
        vocab_size=model.vocab_size,
        image_count=len(sent.image_grids),
        video_count=len(sent.video_grids),
    )
    scope = Scope(call.instance, request, model, encoded=sent)
    with entered(scope):
        result = call.proceed()
    verify(scope, result)
    counters.count(counters.RESTORED)
    return result


def _copied(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)
