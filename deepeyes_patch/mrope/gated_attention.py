"""Every point where we touch Qwen3.5's gated attention, in ``sglang.srt.models.qwen3_5``.

On CUDA, 0.5.15 - 0.5.18 norm, rotate and split q, k and the gate in one kernel that reads one position a
token. Of [3, num_tokens] positions it sees t alone, so every image is turned as if it were one point. The
kernel stays. It is given the rows of cos and sin of the batch, every lane at the position of its own axis, as
its cache, and 0 .. num_tokens - 1 as its positions:

==================================================  ===================================================
seam                                                what we do there
==================================================  ===================================================
``get_rope``                                        refuse sections in another layout when the model is
                                                    built; log what was done
``Qwen3_5ForCausalLM.forward``                      gather the rows, once a pass
``Qwen3_5AttentionDecoderLayer``                    gather them for a model with a forward of its own
``.forward_prepare_cuda_fused``                     (Intern-S2)
``fused_qk_gemma_rmsnorm_rope_gate``                hand the rows to upstream's kernel
==================================================  ===================================================

One-dimensional positions (text) pass through untouched. Where the kernel is absent (not CUDA, before 0.5.15)
or takes all axes by itself (from 0.5.19 on), nothing is done.

The three functions of the forward pass are plain Python: SGLang compiles this ``forward``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch

from deepeyes_patch.mrope import binding, lanes
from deepeyes_patch.mrope.kernel import gather_rows_fused
from deepeyes_patch.seams import examine as compat
from deepeyes_patch.seams import wrapping
from deepeyes_patch.seams.table import GATED_ATTENTION, GATED_LAYER, GATED_MODEL, KERNEL, LAYER, MODEL
from deepeyes_patch.seams.wrapping import bind


class GatheredRows(NamedTuple):
    """What stands for [3, num_tokens] positions on the way to the kernel.

    Whatever else uses positions fails on it loudly, as it is no tensor.
    """

    cos_sin: torch.Tensor  # [num_tokens, rotary_dim]
    in_order: torch.Tensor  # int64 [num_tokens]


def apply(module: ModuleType, switch: str, announce: Callable[[], None]) -> str | None:
    """Repair ``sglang.srt.models.qwen3_5`` where its fused kernel reads one position a token.

    Parameters
    ----------
    module:
        The module with Qwen3.5's text model.
    switch:
        The environment variable to name in messages.
    announce:
        Called when a repaired model is built: its process logs its line then.

    Returns
    -------
    What was done, in a few words; ``None`` where nothing is to be done.

    Raises
    ------
    IncompatibleSGLangError
        The kernel is there, and a class or function that the repair needs has another shape.
    """
    kernel = getattr(module, KERNEL, None)
    if kernel is None or any("mrope" in name for name in inspect.signature(kernel).parameters):
        return None
    compat.require(module, GATED_ATTENTION, binding.REPAIR, switch)
    for name, seams in ((MODEL, GATED_MODEL), (LAYER, GATED_LAYER)):
        cls = getattr(module, name, None)
        if not isinstance(cls, type):
            raise compat.incompatible(binding.REPAIR, switch, [f"{module.__name__} has no class {name}"])
        compat.require(cls, seams, binding.REPAIR, switch)
    wrapping.wrap(module, "get_rope", _checking_layout(announce))
    wrapping.wrap_traceably(module, KERNEL, _given_rows)
    wrapping.wrap_traceably(getattr(module, LAYER), "forward_prepare_cuda_fused", _gathering_in_layer)
    wrapping.wrap_traceably(getattr(module, MODEL), "forward", _gathering_once)
    return f"patched ({LAYER})"


def _checking_layout(announce: Callable[[], None]) -> wrapping.Wrapper:
    def get_rope(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        rope = wrapped(*args, **kwargs)
        scaling = bind(wrapped, args, kwargs).arguments.get("rope_scaling")
        if scaling and "mrope_section" in scaling:
            if not getattr(rope, "mrope_interleaved", False):
                raise ValueError(
                    f"deepeyes-patch: Qwen3.5 interleaves its rotary lanes, and for {dict(scaling)} SGLang "
                    f"{compat.sglang_version()} builds a {type(rope).__name__} that does not. The config "
                    f"needs mrope_interleaved: true"
                )
            lanes.check_section(scaling["mrope_section"], rope.rotary_dim)
        announce()
        return rope

    return get_rope


def _gather(rope: Any, positions: torch.Tensor) -> GatheredRows:
    return GatheredRows(*gather_rows_fused(rope.cos_sin_cache, positions, rope.mrope_section))


def _gathering_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, input_ids: Any, positions: Any, *args: Any, **kwargs: Any) -> Any:
        if positions.ndim == 2:
            for layer in self.layers:
                # All attention layers of a model share one rope; an ungated one does not run the kernel.
                if getattr(layer, "attn_output_gate", False):
                    positions = _gather(layer.rotary_emb, positions)
                    break
        return original(self, input_ids, positions, *args, **kwargs)

    return forward


def _gathering_in_layer(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward_prepare_cuda_fused(self: Any, positions: Any, hidden_states: Any) -> Any:
        if not isinstance(positions, GatheredRows) and positions.ndim == 2:
            positions = _gather(self.rotary_emb, positions)
        return original(self, positions, hidden_states)

    return forward_prepare_cuda_fused


def _given_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fused_qk_gemma_rmsnorm_rope_gate(
        q_gate: Any,
        k: Any,
        q_weight: Any,
        k_weight: Any,
        cos_sin_cache: Any,
        positions: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if isinstance(positions, GatheredRows):
            cos_sin_cache, positions = positions
        return original(q_gate, k, q_weight, k_weight, cos_sin_cache, positions, *args, **kwargs)

    return fused_qk_gemma_rmsnorm_rope_gate
