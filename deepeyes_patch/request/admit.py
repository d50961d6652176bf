"""The tokenizer manager takes a request: what is refused before and after the processor.

This is the one seam outside ``qwen_vl.py`` that every request passes through, whatever path it takes below.

SGLang calls the image processor only for requests with media. If the client forgot the images, or the model
sampled the placeholders, SGLang would serve the ids with the embedding of the placeholder itself. With
``--allow-auto-truncate``, SGLang cuts the ids that the processor returned, but not the positions and images.
And a release may give the processor a second outermost method, which none of our other wrappers covers. So no
result for ids and media leaves here without the last look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.tokens import VisionTokens
from deepeyes_patch.observe import counters
from deepeyes_patch.request import media, sessions
from deepeyes_patch.request.begin import open_scope
from deepeyes_patch.request.preprocessed import is_preprocessed
from deepeyes_patch.request.scope import Admission, admitted
from deepeyes_patch.request.unserved import unserved_request
from deepeyes_patch.request.verify import part, verify, verify_unserved
from deepeyes_patch.seams.families import Model, inherits_ours, model_of
from deepeyes_patch.seams.wrapping import Call

# The attribute of a request whose images an encoder embeds: the scheduler waits for them. To 0.5.9 and later.
_WAITS = ("need_wait_for_image", "need_wait_for_mm_inputs")


async def admit(call: Call) -> Any:
    """``TokenizerManager._tokenize_one_request``."""
    request, processor = call.arguments["obj"], getattr(call.instance, "mm_processor", None)
    model = model_of(processor)
    if model is not None:
        sessions.refuse_broken(request)
    if getattr(request, "input_ids", None) is None or (model is None and not inherits_ours(processor)):
        return await call.proceed()
    if not request.contains_mm_input():
        if model is not None:
            refuse_placeholders(request.input_ids, model.tokens)
        return await call.proceed()
    if model is None:
        return await _admit_unserved(call, request, processor)
    if getattr(request, "text", None):
        raise RefusedRequest(
            "unsupported", "a request with images or videos holds both text and input_ids; send one of them"
        )
    # Read now: SGLang cuts this list itself.
    ids, images = list(request.input_ids), _listed(request.image_data)
    admission = Admission()
    with admitted(admission):
        tokenized = await call.proceed()
    _refuse_cut(tokenized, len(ids))
    inputs = inputs_of(tokenized)
    if inputs is not admission.judged:
        _judge(processor, model, request, ids, images, inputs)
    elif inputs is None and not any(getattr(request, name, False) for name in _WAITS):
        raise RefusedRequest(
            "inexact", "SGLang would serve the input_ids of this request without its images and videos"
        )
    return tokenized


def keep_text(call: Call) -> Any:
    """``_can_reuse_text_only_prompt_ids``: whether a chat without media goes on as the ids of its text.

    A text may speak of a placeholder. As ids, it could not be told from a request that lost its images.
    """
    model = model_of(getattr(getattr(call.instance, "tokenizer_manager", None), "mm_processor", None))
    ids = getattr(call.arguments["processed_messages"], "prompt_ids", None)
    if model is None or not isinstance(ids, list):
        return call.proceed()
    return call.proceed() if set(model.tokens.placeholders.values()).isdisjoint(ids) else False


def _judge(processor: Any, model: Model, request: Any, ids: list[int], images: Any, inputs: Any) -> None:
    """The last look at a result that took a path past our other wrappers."""
    counters.count(counters.UNKNOWN_PATH)
    scope, _ = open_scope(processor, model, ids, images, request)
    verify(scope, inputs)
    counters.count(counters.RESTORED)


async def _admit_unserved(call: Call, request: Any, processor: Any) -> Any:
    unserved, images = unserved_request(processor, request.input_ids), _listed(request.image_data) or []
    if not any(map(is_preprocessed, images)):
        unserved.check_placeholders(len(images))
    tokenized = await call.proceed()
    verify_unserved(unserved, inputs_of(tokenized))
    return tokenized


def _listed(images: Any) -> list[Any] | None:
    return None if images is None else list(media.as_list(images))


def inputs_of(tokenized: Any) -> Any:
    """The processor's result. Up to 0.5.14, a request for an embedding calls it ``image_inputs``."""
    return tokenized.mm_inputs if hasattr(tokenized, "mm_inputs") else tokenized.image_inputs


def refuse_placeholders(ids: Sequence[int], tokens: VisionTokens) -> None:
    """Refuse ids with placeholders that no image or video came with.

    Raises
    ------
    RefusedRequest
        The ids hold a placeholder.
    """
    for modality, token in tokens.placeholders.items():
        if token in ids:
            raise RefusedRequest(
                "placeholders",
                f"input_ids hold {list(ids).count(token)} {modality} placeholder(s) (token {token}), the "
                f"first at position {list(ids).index(token)}, and no {modality} came with them",
            )


def _refuse_cut(tokenized: Any, length: int) -> None:
    inputs = inputs_of(tokenized)
    if inputs is not None:
        positions = part(inputs, "mrope_positions")
        length = len(tokenized.input_ids) if positions is None else positions.shape[-1]
    # Without inputs, the scheduler waits for an encoder, and then expands the ids that were sent.
    if length != len(tokenized.input_ids):
        raise RefusedRequest(
            "cut",
            f"the {length} input_ids of this request exceed the context length, and SGLang "
            f"cut them to {len(tokenized.input_ids)}; its images and videos would no longer fit them",
        )
