"""Interleaved M-RoPE on a GPU, in Triton: rotate query and key, or gather the rows for another kernel.

``rotate_``            turns query and key in place, one launch for both
``gather_rows_fused``  one row of cos and sin for each token, for kernels that read one position per token

Each program serves one token: it reads the token's three positions and a row of cos and sin from the cache,
with every lane at the position of its own axis. Nothing waits for the host, and the launches depend on shapes
and strides only, so the calls can be captured in a CUDA graph and traced by ``torch.compile``.

Rounding in ``rotate_``: cos and sin are rounded to the activations' dtype before they are used, as
``transformers`` and SGLang's own ``_apply_rotary_emb`` do; the products are summed in float32 and rounded
once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl


@triton.jit
def _load_row(
    cache_ptr,
    positions_ptr,
    cache_stride,
    axis_stride,
    token_stride,
    half: tl.constexpr,
    section_h: tl.constexpr,
    section_w: tl.constexpr,
    lane_block: tl.constexpr,
    token,
):
    """(cos, sin) of one token, each [lane_block], in the cache's dtype."""
    lanes = tl.arange(0, lane_block)
    position = positions_ptr + token * token_stride
    t = tl.load(position).to(tl.int64)
    h = tl.load(position + axis_stride).to(tl.int64)
    w = tl.load(position + 2 * axis_stride).to(tl.int64)
    of_h = (lanes % 3 == 1) & (lanes < 3 * section_h)
    of_w = (lanes % 3 == 2) & (lanes < 3 * section_w)
    lane_position = tl.where(of_h, h, tl.where(of_w, w, t))
    entry = cache_ptr + lane_position * cache_stride + lanes
    cos = tl.load(entry, mask=lanes < half, other=0.0)
    sin = tl.load(entry + half, mask=lanes < half, other=0.0)
    return cos, sin


@triton.jit
def _rotate_heads(
    heads_ptr,
    row_stride,
    num_heads: tl.constexpr,
    head_size: tl.constexpr,
    half: tl.constexpr,
    neox: tl.constexpr,
    lane_block: tl.constexpr,
    head_block: tl.constexpr,
    token,
    cos,
    sin,
):
    lanes = tl.arange(0, lane_block)
    first_lane = lanes if neox else 2 * lanes
    second_lane = lanes + half if neox else 2 * lanes + 1
    for start in tl.static_range(0, num_heads, head_block):
        heads = start + tl.arange(0, head_block)
        inside = (heads < num_heads)[:, None] & (lanes < half)[None, :]
        row = heads_ptr + token * row_stride + heads[:, None] * head_size
        first = tl.load(row + first_lane[None, :], mask=inside)
        second = tl.load(row + second_lane[None, :], mask=inside)
        rounded_cos = cos.to(first.dtype).to(tl.float32)[None, :]
        rounded_sin = sin.to(first.dtype).to(tl.float32)[None, :]
        a, b = first.to(tl.float32), second.to(tl.float32)
        tl.store(row + first_lane[None, :], (a * rounded_cos - b * rounded_sin).to(first.dtype), mask=inside)
        tl.store(row + second_lane[None, :], (b * rounded_cos + a * rounded_sin).to(first.dtype), mask=inside)


@triton.jit
def interleaved_mrope_kernel(
    query_ptr,
    key_ptr,
    cache_ptr,
    positions_ptr,
    query_stride,
    key_stride,
    cache_stride,
    axis_stride,
    token_stride,
    query_heads: tl.constexpr,
    key_heads: tl.constexpr,
    head_size: tl.constexpr,
    half: tl.constexpr,
    section_h: tl.constexpr,
    section_w: tl.constexpr,
    neox: tl.constexpr,
    lane_block: tl.constexpr,
    head_block: tl.constexpr,
):
    """One program per token. Strides in elements; ``half`` is rotary_dim // 2."""
    token = tl.program_id(0).to(tl.int64)
    cos, sin = _load_row(
        cache_ptr,
        positions_ptr,
        cache_stride,
        axis_stride,
        token_stride,
        half,
        section_h,
        section_w,
        lane_block,
        token,
    )
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    _rotate_heads(
        query_ptr, query_stride, query_heads, head_size, half, neox, lane_block, head_block, token, cos, sin
    )
    _rotate_heads(
        key_ptr, key_stride, key_heads, head_size, half, neox, lane_block, head_block, token, cos, sin
    )


def block_sizes(query_heads: int, key_heads: int, half: int) -> tuple[int, int]:
    """(lane_block, head_block) that the kernel is launched with; ``half`` is rotary_dim // 2."""
    lane_block = triton.next_power_of_2(half)
    # With 2048 elements per step, a head block stays in registers on every card from sm_80 on.
    head_block = min(triton.next_power_of_2(max(query_heads, key_heads)), max(1, 2048 // lane_block))
    return lane_block, head_block


def rotate_(
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    mrope_section: Sequence[int],
    head_size: int,
    rotary_dim: int,
    is_neox_style: bool,
) -> None:
    """Rotate ``query`` and ``key`` in place.

    Parameters
    ----------
    query, key:
        [num_tokens, num_heads * head_size] and [num_tokens, num_kv_heads * head_size], one of fp16, bf16,
        fp32; rows may be strided (views into a fused projection), the last dimension must be contiguous.
    cos_sin_cache:
        [max_position, rotary_dim], cos then sin, any float dtype.
    positions:
        [3, num_tokens], t/h/w, int32 or int64, any strides.
    mrope_section:
        Lanes of t, h, w; sums to rotary_dim // 2.

    Raises
    ------
    ValueError
        The last dimension is not contiguous, or is not a multiple of ``head_size``.
    """
    num_tokens = query.shape[0]
    if num_tokens == 0:
        return
    for name, heads in (("query", query), ("key", key)):
        if heads.stride(-1) != 1 or heads.shape[-1] % head_size:
            raise ValueError(
                f"{name} of shape {tuple(heads.shape)} and strides {heads.stride()} does not hold contiguous "
                f"heads of {head_size}"
            )
    half = rotary_dim // 2
    query_heads, key_heads = query.shape[-1] // head_size, key.shape[-1] // head_size
    lane_block, head_block = block_sizes(query_heads, key_heads, half)
    interleaved_mrope_kernel[(num_tokens,)](
        query,
        key,
        cos_sin_cache,
        positions,
        query.stride(0),
        key.stride(0),
        cos_sin_cache.stride(0),
        positions.stride(0),
        positions.stride(1),
        query_heads=query_heads,
        key_heads=key_heads,
        head_size=head_size,
        half=half,
        section_h=mrope_section[1],
        section_w=mrope_section[2],
        neox=is_neox_style,
        lane_block=lane_block,
        head_block=head_block,
        num_warps=4,
    )


@triton.jit
def gather_rows_kernel(
    rows_ptr,
    in_order_ptr,
    cache_ptr,
    positions_ptr,
    cache_stride,
    axis_stride,
    token_stride,
    half: tl.constexpr,
    section_h: tl.constexpr,
    section_w: tl.constexpr,
    lane_block: tl.constexpr,
):
    """One program per token. Strides in elements; ``half`` is rotary_dim // 2."""
    token = tl.program_id(0).to(tl.int64)
    cos, sin = _load_row(
        cache_ptr,
        positions_ptr,
        cache_stride,
        axis_stride,
        token_stride,
        half,
        section_h,
        section_w,
        lane_block,
        token,
    )
    lanes = tl.arange(0, lane_block)
    row = rows_ptr + token * 2 * half + lanes
    tl.store(row, cos, mask=lanes < half)
    tl.store(row + half, sin, mask=lanes < half)
    tl.store(in_order_ptr + token, token)


def gather_rows_fused(
    cos_sin_cache: torch.Tensor, positions: torch.Tensor, mrope_section: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """`deepeyes_patch.mrope.rotation.gather_rows` in one launch, with the index of its rows.

    Parameters
    ----------
    cos_sin_cache:
        [max_position, rotary_dim], cos then sin, any float dtype; rows may be strided.
    positions:
        [3, num_tokens], t/h/w, int32 or int64, any strides.
    mrope_section:
        Lanes of t, h, w; sums to rotary_dim // 2.

    Returns
    -------
    rows [num_tokens, rotary_dim] of the cache's dtype, and int64 [num_tokens], 0 .. num_tokens - 1. A
    one-dimensional rope with these as its cache and its positions turns every lane by its own axis.
    """
    num_tokens, rotary_dim = positions.shape[1], 2 * sum(mrope_section)
    rows = cos_sin_cache.new_empty((num_tokens, rotary_dim))
    in_order = torch.empty(num_tokens, dtype=torch.int64, device=positions.device)
    if num_tokens > 0:
        gather_rows_kernel[(num_tokens,)](
            rows,
            in_order,
            cos_sin_cache,
            positions,
            cos_sin_cache.stride(0),
            positions.stride(0),
            positions.stride(1),
            half=rotary_dim // 2,
            section_h=mrope_section[1],
            section_w=mrope_section[2],
            lane_block=triton.next_power_of_2(rotary_dim // 2),
            num_warps=1,
        )
    return rows, in_order
