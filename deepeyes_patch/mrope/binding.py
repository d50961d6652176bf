"""Every point where we touch SGLang's rotary embeddings.

A release whose ``MRotaryEmbedding`` takes ``mrope_interleaved`` is native: it rotates right if the config is
complete. 0.5.3 and 0.5.3.post1 are not native.

For Qwen3-VL, its MoE and Qwen3.5, ``transformers`` interleaves whatever the config says, and takes
``rope_theta`` from the rotary block if it is there. If the config says ``mrope_interleaved: false``, we keep
SGLang's chunks and log a warning. Other models keep the instance that SGLang builds, with its class and its
compiled ``forward``. ``mrope_interleaved`` is part of ``get_rope``'s cache key, so an instance is interleaved
or chunked for good.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from deepeyes_patch.errors import UnsupportedConfigError
from deepeyes_patch.mrope import lanes, yarn
from deepeyes_patch.mrope.building import is_building
from deepeyes_patch.mrope.rotation import gather_rows
from deepeyes_patch.observe import outcomes, release
from deepeyes_patch.seams.wrapping import Call

logger = logging.getLogger("deepeyes_patch")


def get_rope(call: Call) -> Any:
    """``get_rope``: SGLang builds a rope, or takes one out of its cache."""
    arguments = call.arguments
    scaling = arguments.get("rope_scaling")
    if not scaling or "mrope_section" not in scaling:
        return call.proceed()
    if is_building():
        scaling = _as_transformers_reads(scaling)
        arguments["rope_scaling"] = scaling
        arguments["base"] = _theta(scaling, arguments["base"])
    if scaling.get("mrope_interleaved"):
        outcomes.raise_failure("mrope")
    rope = call.proceed()
    if getattr(rope, "mrope_section", None) is None and yarn.has_rows(rope):
        arguments["rope_scaling"] = yarn.without_yarn(scaling)
        without_sections, rope = rope, call.proceed()
        yarn.give_rows(rope, without_sections)
    _require_sections(scaling, rope)
    native = _is_native(type(rope))  # type: ignore[arg-type]
    if not scaling.get("mrope_interleaved") or (native and not is_building()):
        return rope
    # Check the sections of the config, not those of the rope: SGLang rescales sections that do not fit.
    lanes.check_section(scaling["mrope_section"], rope.rotary_dim)
    if not native:
        if not getattr(rope, "mrope_interleaved", False):  # else it is interleaved already, from the cache
            rope.__class__ = interleaved_class(type(rope))  # type: ignore[arg-type]
        outcomes.announce()
    return rope


@functools.cache
def _is_native(cls: type) -> bool:
    """Whether an SGLang class, or a class that it derives from, takes ``mrope_interleaved``."""
    constructors = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
    return any("mrope_interleaved" in inspect.signature(init).parameters for init in constructors)


def _as_transformers_reads(scaling: Mapping[str, Any]) -> Mapping[str, Any]:
    """``rope_scaling`` as ``transformers`` takes it from the same config."""
    flag = scaling.get("mrope_interleaved")
    if flag is None:
        # A copy gets a cache key of its own, so no chunked instance is shared.
        return {**scaling, "mrope_interleaved": True}
    if not flag:
        logger.warning(
            "deepeyes-patch: the config of this model says mrope_interleaved: false, so its rope stays "
            "chunked; transformers interleaves it whatever the config says"
        )
    return scaling


def _theta(scaling: Mapping[str, Any], base: float) -> float:
    """``rope_theta``. 0.5.6.post1 looks for it outside the rotary block, where transformers 5 has none."""
    theta: float = scaling.get("rope_theta", base)
    if theta != base:
        logger.warning(
            "deepeyes-patch: this config's rope_theta is %s, and SGLang would have used %s", theta, base
        )
    return theta


def _require_sections(scaling: Mapping[str, Any], rope: Any) -> None:
    if getattr(rope, "mrope_section", None) is None:
        kind = scaling.get("rope_type", scaling.get("type"))
        raise UnsupportedConfigError(
            f"deepeyes-patch: for rope type {kind!r} SGLang {release.version()} builds a "
            f"{type(rope).__name__}, which ignores mrope_section {list(scaling['mrope_section'])}: every "
            f"image would get text positions. Use a config without {kind!r}"
        )


@functools.cache
def interleaved_class(mrope: Any) -> Any:
    """A subclass of ``MRotaryEmbedding`` that differs only in how it rotates by two-dimensional positions."""
    plain: Any = next(cls for cls in mrope.__mro__ if cls.__name__ == "RotaryEmbedding")

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

            positions: [num_tokens] (text, SGLang's own code) or [3, num_tokens] (t, h, w);
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
            # SGLang's one-dimensional rotation, over a cache that holds this batch's rows in order.
            batch = SimpleNamespace(
                cos_sin_cache=gather_rows(self.cos_sin_cache, positions, self.mrope_section),
                head_size=self.head_size,
                rotary_dim=self.rotary_dim,
                is_neox_style=self.is_neox_style,
            )
            in_order = torch.arange(positions.shape[-1], device=positions.device)
            return plain.forward_native(batch, in_order, query, key)

    return InterleavedMRotaryEmbedding
