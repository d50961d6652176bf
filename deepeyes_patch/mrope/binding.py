"""Every point where we touch SGLang's rotary embeddings.

Releases whose ``MRotaryEmbedding`` takes ``mrope_interleaved`` are native. To them nothing is done, except
that a YaRN rope built for sections that it ignores (before 0.5.9) is refused. On 0.5.3 and 0.5.3.post1:

========================================  =============================================================
seam                                      what we do there
========================================  =============================================================
``get_rope``                              turn the instance for an interleaved config into one of our
                                          subclass; refuse what cannot be right
``Qwen3VLForConditionalGeneration``,      while one is built, a config without ``mrope_interleaved``
``Qwen3VLMoeForConditionalGeneration``    means interleaved, as in ``transformers``
========================================  =============================================================

The ``mrope_interleaved`` entry is part of ``get_rope``'s cache key, so an instance is interleaved or chunked
for good, and chunked models keep upstream's class and compiled ``forward`` untouched.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from deepeyes_patch import compat, wrapping
from deepeyes_patch.compat import Seam
from deepeyes_patch.mrope import lanes
from deepeyes_patch.mrope.rotation import gather_rows
from deepeyes_patch.wrapping import bind

REPAIR = "mrope"

logger = logging.getLogger("deepeyes_patch")

_GET_ROPE = (Seam("get_rope", ("head_size", "rotary_dim", "rope_scaling"), coroutine=False),)
_ROPE = (Seam("forward", ("positions", "query", "key"), coroutine=False),)
_PLAIN_ROPE = (Seam("forward_native", ("positions", "query", "key"), coroutine=False),)

# Set while a model is built whose config means interleaved unless it says otherwise.
_interleaved_by_default: ContextVar[bool] = ContextVar("deepeyes_patch_interleaved", default=False)


def apply(module: ModuleType, switch: str, announce: Callable[[], None]) -> str:
    """Wrap ``get_rope`` of ``sglang.srt.layers.rotary_embedding`` as far as this release needs it.

    Parameters
    ----------
    module:
        The rotary embedding module, or package.
    switch:
        The environment variable to name in messages.
    announce:
        Called when the first interleaved rope was built: the model process logs its line then.

    Returns
    -------
    What was found or done, in a few words.

    Raises
    ------
    IncompatibleSGLangError
        The release is not native, and a class or function that the repair needs has another shape.
    """
    cls = getattr(module, "MRotaryEmbedding", None)
    if not isinstance(cls, type):
        problem = f"{module.__name__} has no class MRotaryEmbedding"
        raise compat.incompatible(REPAIR, switch, [problem])
    native = "mrope_interleaved" in inspect.signature(cls).parameters
    get_rope = getattr(module, "get_rope", None)
    if native and getattr(get_rope, "__module__", None) != module.__name__:
        return "native"  # get_rope moved to a module of its own together with YaRN for sections
    compat.require(module, _GET_ROPE, REPAIR, switch)
    if native:
        wrapping.wrap(module, "get_rope", _refusing_lost_sections)
        return "native"
    compat.require(cls, _ROPE, REPAIR, switch)
    compat.require(module.RotaryEmbedding, _PLAIN_ROPE, REPAIR, switch)
    interleaved = interleaved_class(cls, module.RotaryEmbedding)
    wrapping.wrap(module, "get_rope", _interleaving(interleaved, announce))
    return f"patched ({cls.__name__})"


def apply_to_model(module: ModuleType) -> None:
    """Let the Qwen3-VL model classes of ``module`` build interleaved ropes by default."""
    for cls in compat.classes_defined_in(module, lambda c: c.__name__.endswith("ForConditionalGeneration")):
        wrapping.wrap(cls, "__init__", _building_interleaved)


def _building_interleaved(
    wrapped: Callable[..., None], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    token = _interleaved_by_default.set(True)
    try:
        wrapped(*args, **kwargs)
    finally:
        _interleaved_by_default.reset(token)


def _refusing_lost_sections(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    rope = wrapped(*args, **kwargs)
    _check_sections_kept(bind(wrapped, args, kwargs).arguments.get("rope_scaling"), rope)
    return rope


def _interleaving(interleaved: type, announce: Callable[[], None]) -> wrapping.Wrapper:
    def get_rope(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = bind(wrapped, args, kwargs)
        scaling = call.arguments.get("rope_scaling")
        if not scaling or "mrope_section" not in scaling:
            return wrapped(*args, **kwargs)
        flag = scaling.get("mrope_interleaved")
        if flag is None:
            flag = _interleaved_by_default.get()
            if flag:
                # A key of its own, so that no chunked instance is shared.
                scaling = {**scaling, "mrope_interleaved": True}
                call.arguments["rope_scaling"] = scaling
        elif not flag and _interleaved_by_default.get():
            logger.warning(
                "deepeyes-patch: the config of this Qwen3-VL model says mrope_interleaved: false, so its "
                "rope stays chunked; transformers interleaves Qwen3-VL whatever the config says"
            )
        rope = wrapped(*call.args, **call.kwargs)
        _check_sections_kept(scaling, rope)
        if not flag:
            return rope
        # What the config says, not what upstream made of it: it rescales sections that do not fit.
        lanes.check_section(scaling["mrope_section"], rope.rotary_dim)
        rope.__class__ = interleaved
        announce()
        return rope

    return get_rope


def _check_sections_kept(scaling: Any, rope: Any) -> None:
    if scaling and "mrope_section" in scaling and getattr(rope, "mrope_section", None) is None:
        kind = scaling.get("rope_type", scaling.get("type"))
        raise ValueError(
            f"deepeyes-patch: for rope type {kind!r} SGLang {compat.sglang_version()} builds a "
            f"{type(rope).__name__}, which ignores mrope_section {list(scaling['mrope_section'])}: every "
            f"image would get text positions. Use SGLang 0.5.9 or newer for this model, or a config "
            f"without {kind!r}"
        )


def refuse(module: ModuleType, error: Exception) -> None:
    """Let ``get_rope`` of a release that is not understood raise ``error`` for interleaved configs."""

    def get_rope(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        scaling = next((a for a in (*args, *kwargs.values()) if isinstance(a, dict)), {})
        if scaling.get("mrope_interleaved") or ("mrope_section" in scaling and _interleaved_by_default.get()):
            raise error
        return wrapped(*args, **kwargs)

    if hasattr(module, "get_rope"):
        wrapping.wrap(module, "get_rope", get_rope)


def interleaved_class(mrope: Any, plain: Any) -> type:
    """A subclass of ``MRotaryEmbedding`` that differs in its rotation by two-dimensional positions."""

    class InterleavedMRotaryEmbedding(mrope):  # type: ignore[misc]
        mrope_interleaved = True

        def forward(
            self,
            positions: torch.Tensor,
            query: torch.Tensor,
            key: torch.Tensor,
            fused_set_kv_buffer_arg: Any = None,
        ) -> Any:
            """Rotate query and key.

            positions: [num_tokens] (text, upstream's own code) or [3, num_tokens] (t, h, w);
            query: [num_tokens, num_heads * head_size]; key: [num_tokens, num_kv_heads * head_size].
            Returns both, rotated.
            """
            if positions.ndim == 1 or fused_set_kv_buffer_arg is not None:
                return super().forward(positions, query, key, fused_set_kv_buffer_arg)
            if query.is_cuda:
                from deepeyes_patch.mrope.kernel import rotate_

                rotate_(
                    query,
                    key,
                    self.cos_sin_cache,
                    positions,
                    self.mrope_section,
                    self.head_size,
                    self.rotary_dim,
                    self.is_neox_style,
                )
                return query, key
            # Upstream's one-dimensional rotation, over a cache that holds this batch's rows in order.
            batch = SimpleNamespace(
                cos_sin_cache=gather_rows(self.cos_sin_cache, positions, self.mrope_section),
                head_size=self.head_size,
                rotary_dim=self.rotary_dim,
                is_neox_style=self.is_neox_style,
            )
            in_order = torch.arange(positions.shape[-1], device=positions.device)
            return plain.forward_native(batch, in_order, query, key)

    return InterleavedMRotaryEmbedding
