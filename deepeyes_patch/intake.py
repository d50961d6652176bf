"""Where the tokenizer manager takes a request: image or video placeholders that came without media.

SGLang asks the image processor only about requests that carry media, so a prompt of ids whose images
were forgotten (or whose placeholders the model sampled) would be served with the placeholder's own
embedding. This is the one seam outside ``qwen_vl.py`` that a request passes through.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from deepeyes_patch import compat, processor, wrapping
from deepeyes_patch.compat import Seam

SEAMS = (Seam("_tokenize_one_request", ("obj",), coroutine=True),)


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
    compat.require(cls, SEAMS, processor.REPAIR, switch)
    wrapping.wrap(cls, "_tokenize_one_request", _tokenize_one_request)


async def _tokenize_one_request(
    wrapped: Callable[..., Awaitable[Any]],
    manager: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    _refuse_placeholders_without_media(manager, *args, **kwargs)
    return await wrapped(*args, **kwargs)


def _refuse_placeholders_without_media(manager: Any, obj: Any) -> None:
    ids = getattr(obj, "input_ids", None)
    if not isinstance(ids, list) or obj.contains_mm_input():
        return
    tokens = processor.vision_tokens(getattr(manager, "mm_processor", None))
    if tokens is None:
        return
    for modality, token in {"image": tokens.image, **tokens.foreign}.items():
        if token in ids:
            raise ValueError(
                f"input_ids hold {ids.count(token)} {modality} placeholder(s) (token {token}), the "
                f"first at position {ids.index(token)}, and no {modality} came with them"
            )
