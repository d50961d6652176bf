"""Where the tokenizer manager takes a request: what goes wrong before and after the processor.

SGLang asks the image processor only about requests that carry media, so a prompt of ids whose images
were forgotten (or whose placeholders the model sampled) would be served with the placeholder's own
embedding. And with ``--allow-auto-truncate`` it cuts the ids that came out of the processor, but not their
positions and images. This is the one seam outside ``qwen_vl.py`` that a request passes through.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any

from deepeyes_patch.ids.spans import VisionTokens
from deepeyes_patch.observe import counters
from deepeyes_patch.request import begin as processor
from deepeyes_patch.seams import examine as compat
from deepeyes_patch.seams import wrapping
from deepeyes_patch.seams.table import INTAKE


def apply(module: ModuleType, switch: str) -> None:
    """Wrap ``TokenizerManager._tokenize_one_request``.

    Raises
    ------
    IncompatibleSGLangError
        The class or the method is not there or has another shape.
    """
    cls = getattr(module, "TokenizerManager", None)
    if not isinstance(cls, type):
        problem = f"{module.__name__} defines no class TokenizerManager"
        raise compat.incompatible(processor.REPAIR, switch, [problem])
    compat.require(cls, INTAKE, processor.REPAIR, switch)
    wrapping.wrap(cls, "_tokenize_one_request", _tokenize_one_request)


async def _tokenize_one_request(
    wrapped: Callable[..., Awaitable[Any]],
    manager: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    try:
        return await _tokenize(wrapped, manager, *args, **kwargs)
    except ValueError as error:
        counters.count_refusal(error)
        raise


async def _tokenize(wrapped: Callable[..., Awaitable[Any]], manager: Any, obj: Any) -> Any:
    tokens = processor.vision_tokens(getattr(manager, "mm_processor", None))
    if tokens is None or getattr(obj, "input_ids", None) is None:
        return await wrapped(obj)
    if not obj.contains_mm_input():
        _refuse_placeholders(obj.input_ids, tokens)
        return await wrapped(obj)
    if getattr(obj, "text", None):
        raise ValueError("a request with images or videos holds both text and input_ids; send one of them")
    sent = len(obj.input_ids)  # SGLang cuts this very list
    tokenized = await wrapped(obj)
    _refuse_cut(tokenized, sent)
    return tokenized


def _refuse_placeholders(ids: Sequence[int], tokens: VisionTokens) -> None:
    for modality, token in {"image": tokens.image, **tokens.foreign}.items():
        if token in ids:
            raise ValueError(
                f"input_ids hold {list(ids).count(token)} {modality} placeholder(s) (token {token}), the "
                f"first at position {list(ids).index(token)}, and no {modality} came with them"
            )


def _refuse_cut(tokenized: Any, sent: int) -> None:
    # To 0.5.14 a request for an embedding has another name for them.
    made = tokenized.mm_inputs if hasattr(tokenized, "mm_inputs") else tokenized.image_inputs
    if made is None:  # the scheduler waits for an encoder, and will expand the ids
        expected = sent
    else:
        positions = processor.field(made, "mrope_positions")
        expected = len(tokenized.input_ids) if positions is None else positions.shape[-1]
    if expected != len(tokenized.input_ids):
        raise ValueError(
            f"the {expected} input_ids of this request exceed the context length, and SGLang "
            f"cut them to {len(tokenized.input_ids)}; its images and videos would no longer fit them"
        )
