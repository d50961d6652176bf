"""Every point where we touch Qwen3.5's gated attention, in ``sglang.srt.models.qwen3_5``.

On CUDA, 0.5.15 - 0.5.18 norm, rotate and split q, k and the gate in one kernel, which reads one position per
token. Of [3, num_tokens] positions it reads only t, so every image is rotated as if it were one point. We
keep the kernel. As its cache it gets the cos and sin rows of the batch, with every lane at the position of
its own axis. As its positions it gets 0 .. num_tokens - 1.

One-dimensional positions (text) pass through untouched. If the kernel is absent (not CUDA, before 0.5.15) or
takes all axes by itself (from 0.5.19 on), we change nothing.

The three functions of the forward pass are plain Python, because SGLang compiles this ``forward``. They pass
on all other arguments of a release.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from deepeyes_patch.errors import UnsupportedConfigError
from deepeyes_patch.mrope import lanes
from deepeyes_patch.mrope.kernel import gather_rows_fused
from deepeyes_patch.observe import outcomes, release
from deepeyes_patch.seams.wrapping import Call


class GatheredRows(NamedTuple):
    """What replaces [3, num_tokens] positions on the way to the kernel.

    It is not a tensor, so any other code that uses positions fails on it at once.
    """

    cos_sin: torch.Tensor  # [num_tokens, rotary_dim]
    in_order: torch.Tensor  # int64 [num_tokens]


def get_rope(call: Call) -> Any:
    """``get_rope``, as imported by ``qwen3_5``: refuse sections in another layout than the model's."""
    rope = call.proceed()
    scaling = call.arguments.get("rope_scaling")
    if scaling and "mrope_section" in scaling:
        if not getattr(rope, "mrope_interleaved", False):
            raise UnsupportedConfigError(
                f"deepeyes-patch: Qwen3.5 interleaves its rotary lanes, and for {dict(scaling)} SGLang "
                f"{release.version()} builds a {type(rope).__name__} that does not. The config "
                f"needs mrope_interleaved: true"
            )
        lanes.check_section(scaling["mrope_section"], rope.rotary_dim)
    outcomes.announce()
    return rope


def _gather(rope: Any, positions: torch.Tensor) -> GatheredRows:
    return GatheredRows(*gather_rows_fused(rope.cos_sin_cache, positions, rope.mrope_section))


def gather_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Qwen3_5ForCausalLM.forward``: gather the rows once per pass."""

    @functools.wraps(original)
    def forward(self: Any, input_ids: Any, positions: Any, *args: Any, **kwargs: Any) -> Any:
        if positions.ndim == 2:
            for layer in self.layers:
                # All attention layers of a model share one rope. An ungated layer does not run the kernel.
                if getattr(layer, "attn_output_gate", False):
                    positions = _gather(layer.rotary_emb, positions)
                    break
        return original(self, input_ids, positions, *args, **kwargs)

    return forward


def gather_in_layer(original: Callable[..., Any]) -> Callable[..., Any]:
    """``forward_prepare_cuda_fused``: gather the rows in the layer, for a model that has its own forward."""

    @functools.wraps(original)
    def forward_prepare_cuda_fused(self: Any, positions: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(positions, GatheredRows) and positions.ndim == 2:
            positions = _gather(self.rotary_emb, positions)
        return original(self, positions, *args, **kwargs)

    return forward_prepare_cuda_fused


def hand_over_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel: pass the gathered rows as its cache."""

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
