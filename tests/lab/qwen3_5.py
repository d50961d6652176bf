"""A release's own Qwen3.5 text model and its fused CUDA kernel, on a CPU.

The attention layers only: two of them, tiny and seeded, with the weights of ``transformers``' model. The
kernel is what the release calls on CUDA; Triton's interpreter runs it, if ``TRITON_INTERPRET`` was set before
triton was imported. The attention itself and the gate's product, whose kernels exist on GPUs only, are plain
torch.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.lab import installed, processors

KERNEL = "fused_qk_gemma_rmsnorm_rope_gate"
_HOMES = (
    "sglang.kernels.ops.attention.fused_qk_rmsnorm_rope_gate",
    "sglang.srt.layers.fused_qk_rmsnorm_rope_gate",  # 0.5.15
)
VOCABULARY = 64
HEADS, KEY_HEADS, HEAD = 2, 1, 256
SECTION = [11, 11, 10]
ROPE = {"rope_type": "default", "mrope_section": SECTION, "mrope_interleaved": True}
THETA, PARTIAL = 1e7, 0.25
CONTEXT = 4096


def home() -> str | None:
    """The module of the release's fused kernel, without importing it; None where there is none."""
    return next(filter(installed.has_module, _HOMES), None)


def kernel() -> Callable[..., Any] | None:
    """The release's fused kernel; None where there is none."""
    name = home()
    return getattr(importlib.import_module(name), KERNEL) if name else None


def module_as_on_cuda(set_attribute: Callable[[ModuleType, str, Any], None]) -> ModuleType:
    """``sglang.srt.models.qwen3_5`` with what it imports on CUDA only.

    ``set_attribute``: `setattr`, or pytest's, which takes it back.
    """
    module = importlib.import_module("sglang.srt.models.qwen3_5")
    set_attribute(module, "_is_cuda", True)
    set_attribute(module, KERNEL, kernel())
    set_attribute(module, "fused_sigmoid_mul", lambda x, gate, inplace: x * gate.sigmoid())
    return module


def rope() -> Any:
    """The rope that the model's layers get: [11, 11, 10] lanes of 64 rotary elements in heads of 256."""
    factory = importlib.import_module("sglang.srt.layers.rotary_embedding")
    return factory.get_rope(
        HEAD,
        rotary_dim=HEAD,
        max_position=CONTEXT,
        base=THETA,
        rope_scaling=dict(ROPE),
        partial_rotary_factor=PARTIAL,
        dtype=torch.bfloat16,
    )


def _config(cls: type) -> Any:
    return cls(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD,
        full_attention_interval=1,
        layer_types=["full_attention"] * 2,
        rope_parameters={**ROPE, "rope_theta": THETA, "partial_rotary_factor": PARTIAL},
        partial_rotary_factor=PARTIAL,
        max_position_embeddings=CONTEXT,
    )


@cache
def reference() -> Any:
    """``transformers``' text model in bf16, seeded."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel

    model = Qwen3_5TextModel(_config(Qwen3_5TextConfig)).to(torch.bfloat16).eval()
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        spread = 0.1 if name.endswith("norm.weight") else 0.2
        weight.data.copy_(torch.randn(weight.shape, generator=generator) * spread)
    return model


def text_model(module: ModuleType) -> Any:
    """The release's ``Qwen3_5ForCausalLM`` (the text model without a head) with the same weights."""
    _join_world_of_one()
    config = importlib.import_module("sglang.srt.configs.qwen3_5").Qwen3_5TextConfig
    default, on_cuda = torch.get_default_dtype(), module._is_cuda
    torch.set_default_dtype(torch.bfloat16)
    module._is_cuda = False  # the constructor would ask for a CUDA stream
    try:
        model = module.Qwen3_5ForCausalLM(_config(config))
    finally:
        torch.set_default_dtype(default)
        module._is_cuda = on_cuda
    model.load_weights(list(reference().named_parameters()))
    for layer in model.layers:
        del layer.attn
        layer.attn = _attend
    return model


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, forward_batch: Any) -> torch.Tensor:
    tokens = query.shape[0]
    heads = [x.view(1, tokens, -1, HEAD).transpose(1, 2) for x in (query, key, value)]
    out = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(tokens, -1)


@cache
def _join_world_of_one() -> None:
    distributed = importlib.import_module("sglang.srt.distributed")
    attention = importlib.import_module("sglang.srt.layers.dp_attention")
    server_args = processors.build("qwen3_vl").server_args
    with tempfile.NamedTemporaryFile() as meeting:
        distributed.init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method=f"file://{meeting.name}.world",
            backend="gloo",
        )
    distributed.initialize_model_parallel()
    sizes = SimpleNamespace(hf_config=None, hidden_size=64, dtype=torch.bfloat16)
    attention.initialize_dp_attention(server_args, sizes)


def forward_batch() -> Any:
    """What the layers ask of SGLang's batch: a prefill, no parallelism."""
    modes = importlib.import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
    return SimpleNamespace(forward_mode=modes.EXTEND, attn_cp_metadata=None, can_run_tbo=False)


def positions() -> torch.Tensor:
    """int64 [3, 24], t/h/w: 6 tokens of text, an image of 3 x 4, 6 tokens of text."""
    pads = torch.arange(12)
    image = torch.stack((torch.full((12,), 6), 6 + pads // 4, 6 + pads % 4))
    text = torch.arange(6).expand(3, -1)
    return torch.cat((text, image, 10 + text), dim=1)
