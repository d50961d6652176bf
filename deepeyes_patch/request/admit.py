"""The tokenizer manager takes a request: what is refused before and after the processor.

SGLang calls the image processor only for requests with media. If the client forgot the images, or the model
sampled the placeholders, SGLang would serve the ids with the embedding of the placeholder itself. With
``--allow-auto-truncate``, SGLang cuts the ids that the processor returned, but not the positions and images.
This is the one seam outside ``qwen_vl.py`` that every request passes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.tokens import VisionTokens
from deepeyes_patch.request.verify import part
from deepeyes_patch.seams.families import model_of
from deepeyes_patch.seams.wrapping import Call


async def admit(call: Call) -> Any:
    """``TokenizerManager._tokenize_one_request``."""
    request = call.arguments["obj"]
    model = model_of(getattr(call.instance, "mm_processor", None))
    if model is None or getattr(request, "input_ids", None) is None:
        return await call.proceed()
    if not request.contains_mm_input():
        _refuse_placeholders(request.input_ids, model.tokens)
        return await call.proceed()
    if getattr(request, "text", None):
        raise RefusedRequest(
            "unsupported", "a request with images or videos holds both text and input_ids; send one of them"
        )
    length = len(request.input_ids)  # read now, because SGLang cuts this list itself
    tokenized = await call.proceed()
    _refuse_cut(tokenized, length)
    return tokenized


def _refuse_placeholders(ids: Sequence[int], tokens: VisionTokens) -> None:
    for modality, token in {"image": tokens.image, **tokens.foreign}.items():
        if token in ids:
            raise RefusedRequest(
                "placeholders",
                f"input_ids hold {list(ids).count(token)} {modality} placeholder(s) (token {token}), the "
                f"first at position {list(ids).index(token)}, and no {modality} came with them",
            )


def _refuse_cut(tokenized: Any, length: int) -> None:
    # Up to 0.5.14, a request for an embedding calls them `image_inputs`.
    inputs = tokenized.mm_inputs if hasattr(tokenized, "mm_inputs") else tokenized.image_inputs
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
