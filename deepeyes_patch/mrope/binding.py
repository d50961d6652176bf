"""Every point where we touch SGLang's rotary embeddings.

A release whose ``MRotaryEmbedding`` takes ``mrope_interleaved`` is native: it rotates right what its config
describes in full. 0.5.3 and 0.5.3.post1 are not.

=============================================  ========================================================
seam                                           what we do there
=============================================  ========================================================
``get_rope``                                   read the config as ``transformers`` does while one of the
                                               models below is built; refuse a rope that cannot be right;
                                               where the release is not native, turn the instance for an
                                               interleaved config into one of our subclass
``...ForConditionalGeneration.__init__`` of    say that one is being built
``qwen3_vl``, ``qwen3_vl_moe``, ``qwen3_5``
=============================================  ========================================================

For the three families ``transformers`` interleaves whatever the config says, and takes ``rope_theta`` from
the rotary block if it is there. SGLang's chunks stay for an explicit ``mrope_interleaved: false``, with a
warning. Other models keep what upstream builds for them, class and compiled ``forward`` included:
``mrope_interleaved`` is part of ``get_rope``'s cache key, so an instance is interleaved or chunked for good.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from deepeyes_patch.mrope import lanes
from deepeyes_patch.mrope.rotation import gather_rows
from deepeyes_patch.seams import examine as compat
from deepeyes_patch.seams import wrapping
from deepeyes_patch.seams.table import GET_ROPE, PLAIN_ROPE, ROPE
from deepeyes_patch.seams.wrapping import bind

REPAIR = "mrope"

logger = logging.getLogger("deepeyes_patch")

# Set while a model is built that ``transformers`` always interleaves.
_building_interleaved: ContextVar[bool] = ContextVar("deepeyes_patch_interleaved", default=False)


def apply(module: ModuleType, switch: str, announce: Callable[[], None]) -> str:
    """Wrap ``get_rope`` of ``sglang.srt.layers.rotary_embedding``.

    Parameters
    ----------
    module:
        The rotary embedding module, or package.
    switch:
        The environment variable to name in messages.
    announce:
        Called when a rope became one of ours: the model process logs its line then.

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
    compat.require(module, GET_ROPE, REPAIR, switch)
    if "mrope_interleaved" in inspect.signature(cls).parameters:
        wrapping.wrap(module, "get_rope", _get_rope(None, announce))
        return "native"
    compat.require(cls, ROPE, REPAIR, switch)
    compat.require(module.RotaryEmbedding, PLAIN_ROPE, REPAIR, switch)
    wrapping.wrap(module, "get_rope", _get_rope(interleaved_class(cls, module.RotaryEmbedding), announce))
    return f"patched ({cls.__name__})"


def apply_to_model(module: ModuleType) -> None:
    """Let the model classes of ``module`` say that they are being built."""
    for cls in compat.classes_defined_in(module, lambda c: c.__name__.endswith("ForConditionalGeneration")):
        wrapping.wrap(cls, "__init__", _build)


def _build(wrapped: Callable[..., None], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with building():
        wrapped(*args, **kwargs)


@contextlib.contextmanager
def building() -> Iterator[None]:
    """While one of the models is built that ``transformers`` always interleaves."""
    token = _building_interleaved.set(True)
    try:
        yield
    finally:
        _building_interleaved.reset(token)


def _get_rope(interleaved: type | None, announce: Callable[[], None]) -> wrapping.Wrapper:
    """``interleaved``: the class to turn instances into; ``None`` where upstream's own does it."""

    def get_rope(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = bind(wrapped, args, kwargs)
        scaling = call.arguments.get("rope_scaling")
        if not scaling or "mrope_section" not in scaling:
            return wrapped(*args, **kwargs)
        ours = _building_interleaved.get()
        if ours:
            call.arguments.update(_as_transformers_reads(scaling, call.arguments["base"]))
            scaling = call.arguments["rope_scaling"]
        rope = wrapped(*call.args, **call.kwargs)
        _check_sections_kept(scaling, rope)
        if not scaling.get("mrope_interleaved") or not (ours or interleaved):
            return rope
        # What the config says, not what upstream made of it: it rescales sections that do not fit.
        lanes.check_section(scaling["mrope_section"], rope.rotary_dim)
        if interleaved:
            rope.__class__ = interleaved
            announce()
        return rope

    return get_rope


def _as_transformers_reads(scaling: Mapping[str, Any], base: float) -> dict[str, Any]:
    """``rope_scaling`` and ``base`` as ``transformers`` takes them from the same config."""
    flag = scaling.get("mrope_interleaved")
    if flag is None:
        # In a copy, which gets a cache key of its own: no chunked instance is shared.
        scaling = {**scaling, "mrope_interleaved": True}
    elif not flag:
        logger.warning(
            "deepeyes-patch: the config of this model says mrope_interleaved: false, so its rope stays "
            "chunked; transformers interleaves it whatever the config says"
        )
    theta = scaling.get("rope_theta", base)
    if theta != base:
        # 0.5.6.post1 looks for rope_theta beside the rotary block, where transformers 5 has none.
        logger.warning(
            "deepeyes-patch: this config's rope_theta is %s, and SGLang would have used %s", theta, base
        )
    return {"rope_scaling": scaling, "base": theta}


def _check_sections_kept(scaling: Mapping[str, Any], rope: Any) -> None:
    if getattr(rope, "mrope_section", None) is None:
        kind = scaling.get("rope_type", scaling.get("type"))
        raise ValueError(
            f"deepeyes-patch: for rope type {kind!r} SGLang {compat.sglang_version()} builds a "
            f"{type(rope).__name__}, which ignores mrope_section {list(scaling['mrope_section'])}: every "
            f"image would get text positions. YaRN with sections works from SGLang 0.5.9 on; for anything "
            f"else use a config without {kind!r}"
        )


def refuse(module: ModuleType, error: Exception) -> None:
    """Let ``get_rope`` of a release that is not understood raise ``error`` for interleaved configs."""

    def get_rope(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        scaling = next((a for a in (*args, *kwargs.values()) if isinstance(a, dict)), {})
        if scaling.get("mrope_interleaved") or ("mrope_section" in scaling and _building_interleaved.get()):
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
