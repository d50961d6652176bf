"""Plain-torch RMS norms: these are really called on a CPU, so they compute the right thing."""

from __future__ import annotations

import torch
from torch import nn


class RMSNorm(nn.Module):
    """RMS norm over the last dimension, in float32, with SGLang's fused-residual convention.

    ``forward(x)`` gives the normed ``x``; ``forward(x, residual)`` gives ``(norm(x + residual),
    x + residual)``. All tensors are ``[..., hidden_size]`` in the model's dtype.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6, var_hidden_size: int | None = None) -> None:
        super().__init__()
        if var_hidden_size not in (None, hidden_size):
            raise NotImplementedError("the lab's RMSNorm has no variance over a part of the row")
        self.variance_epsilon = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def scale(self) -> torch.Tensor:
        return self.weight

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        rows = x.float()
        if residual is not None:
            rows = rows + residual.float()
            residual = rows.to(x.dtype)
        variance = rows.pow(2).mean(dim=-1, keepdim=True)
        normed = (rows * torch.rsqrt(variance + self.variance_epsilon)).to(x.dtype) * self.scale()
        return normed if residual is None else (normed, residual)


class GemmaRMSNorm(RMSNorm):
    """Gemma stores ``weight - 1``."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__(hidden_size, eps)
        nn.init.zeros_(self.weight)

    def scale(self) -> torch.Tensor:
        return 1.0 + self.weight
