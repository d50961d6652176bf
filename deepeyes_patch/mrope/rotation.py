"""The cos/sin rows of a batch under interleaved M-RoPE, in torch: the reference, and what CPUs run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from deepeyes_patch.mrope.lanes import interleaved_axes


def gather_rows(
    cos_sin_cache: torch.Tensor, positions: torch.Tensor, mrope_section: Sequence[int]
) -> torch.Tensor:
    """One row of cos and sin for each token, every lane at the position of its own axis.

    Parameters
    ----------
    cos_sin_cache:
        [max_position, rotary_dim]; the first half of a row is cos, the second sin. Any float dtype.
    positions:
        [3, num_tokens], t/h/w, int32 or int64, any strides.
    mrope_section:
        Lanes of t, h, w; sums to rotary_dim // 2.

    Returns
    -------
    [num_tokens, rotary_dim], same dtype as the cache. A one-dimensional rope takes these rows as its cache,
    and 0 .. num_tokens - 1 as its positions.
    """
    axes = _axes_tensor(tuple(mrope_section), positions.device)
    lane_positions = positions[axes].T  # [num_tokens, rotary_dim // 2]
    lanes = torch.arange(len(axes), device=positions.device)
    cos, sin = cos_sin_cache[:, : len(axes)], cos_sin_cache[:, len(axes) :]
    return torch.cat((cos[lane_positions, lanes], sin[lane_positions, lanes]), dim=-1)


@cache
def _axes_tensor(mrope_section: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(interleaved_axes(mrope_section), device=device)
