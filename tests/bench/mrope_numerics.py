"""How exact the rotation is, per dtype: ``.lab/<release>/bin/python -m tests.bench.mrope_numerics``.

The same random heads at random (t, h, w) positions by our Triton kernel, our torch path and ``transformers``.
Each is compared with the rotation in float64 and with ``transformers``. A last row leaves cos and sin in
float32, so that what their rounding costs, and what it buys, can be seen.

Without a GPU the kernel's arithmetic is done in torch: Triton's interpreter cuts where hardware rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deepeyes_patch.mrope import kernel
from deepeyes_patch.mrope.lanes import interleaved_axes
from deepeyes_patch.mrope.rotation import gather_rows

TOKENS, HEADS, HEAD, SECTION, THETA, CONTEXT = 256, 4, 128, [24, 20, 20], 5e6, 32768
HALF = HEAD // 2


def angles(positions: torch.Tensor) -> torch.Tensor:
    """float64 [tokens, HALF], from the definition."""
    inverse = THETA ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
    return positions[list(interleaved_axes(SECTION))].T.double() * inverse


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, HEAD] by cos and sin [tokens, HALF], neox, in the dtype of all three."""
    a, b = x[..., :HALF], x[..., HALF:]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def by_kernel(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    query, key = x.flatten(1).clone(), x[:, :1].flatten(1).clone()
    kernel.rotate_(query, key, table, positions, SECTION, HEAD, HEAD, True)
    return query.view(x.shape)


def by_torch(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    cos, sin = gather_rows(table, positions, SECTION).to(x.dtype).chunk(2, dim=-1)
    return turn(x, cos, sin)


def by_transformers(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import (
        Qwen3VLTextRotaryEmbedding,
        apply_rotary_pos_emb,
    )

    rotary: dict[str, Any] = {"rope_type": "default", "mrope_section": SECTION, "mrope_interleaved": True}
    config = Qwen3VLTextConfig(
        head_dim=HEAD,
        max_position_embeddings=CONTEXT,
        rope_theta=THETA,
        rope_scaling={**rotary, "rope_theta": THETA},
    )
    rope = Qwen3VLTextRotaryEmbedding(config).to(x.device)
    cos, sin = rope(x, positions[:, None])
    heads = x[None].transpose(1, 2)
    turned, _ = apply_rotary_pos_emb(heads, heads, cos, sin)
    return turned[0].transpose(0, 1)


def by_arithmetic_of_kernel(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    cos, sin = gather_rows(table, positions, SECTION).to(x.dtype).float().chunk(2, dim=-1)
    return turn(x.float(), cos, sin).to(x.dtype)


def in_float32(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    cos, sin = gather_rows(table, positions, SECTION).float().chunk(2, dim=-1)
    return turn(x.float(), cos, sin).to(x.dtype)


WAYS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    **(
        {"Triton kernel": by_kernel}
        if torch.cuda.is_available()
        else {"kernel's arithmetic": by_arithmetic_of_kernel}
    ),
    "torch path": by_torch,
    "transformers": by_transformers,
    "float32 cos and sin": in_float32,
}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    positions = torch.randint(0, CONTEXT, (3, TOKENS), generator=generator).to(device)
    inverse = 1.0 / THETA ** (torch.arange(0, HEAD, 2, dtype=torch.float) / HEAD)  # as SGLang computes it
    freqs = torch.outer(torch.arange(CONTEXT, dtype=torch.float), inverse)
    table = torch.cat((freqs.cos(), freqs.sin()), dim=-1).to(device)
    print(f"{TOKENS} tokens, positions below {CONTEXT}, heads of {HEAD}, sections {SECTION}, on {device}")
    print(f"{'':10} {'':22} {'against float64':>22} {'against transformers':>24}")
    print(f"{'dtype':10} {'':22} {'max':>11} {'mean':>10} {'max':>13} {'mean':>10}")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(TOKENS, HEADS, HEAD, generator=generator).to(dtype).to(device)
        exact = angles(positions.cpu()).to(device)
        truth = turn(x.double(), exact.cos(), exact.sin())
        results = {name: way(x, positions, table).double() for name, way in WAYS.items()}
        for name in WAYS:
            off = (results[name] - truth).abs()
            apart = (results[name] - results["transformers"]).abs()
            print(
                f"{str(dtype).removeprefix('torch.'):10} {name:22} {off.max():11.2e} {off.mean():10.2e} "
                f"{apart.max():13.2e} {apart.mean():10.2e}"
            )


if __name__ == "__main__":
    main()
