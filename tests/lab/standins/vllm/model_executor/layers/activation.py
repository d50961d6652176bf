"""Plain-torch gated activations: these are really called on a CPU, so they compute the right thing."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class SiluAndMul(nn.Module):
    """``[..., 2d] -> [..., d]``: ``silu(first half) * second half``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up


class GeluAndMul(nn.Module):
    """``[..., 2d] -> [..., d]``: ``gelu(first half) * second half``."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return functional.gelu(gate, approximate=self.approximate) * up
