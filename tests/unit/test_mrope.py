"""Interleaved M-RoPE: the lanes, the torch reference, and our Triton kernel in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Read when triton is imported: its kernels then run on CPU tensors, one program after the other.
os.environ["TRITON_INTERPRET"] = "1"

import torch

from deepeyes_patch.mrope import kernel, lanes
from deepeyes_patch.mrope.rotation import gather_rows

CONTEXT = 512


def axis_of(lane: int, section: list[int]) -> int:
    """The rule, one lane at a time. tests/sglang/test_mrope.py checks it against transformers."""
    if lane % 3 == 1 and lane < 3 * section[1]:
        return 1
    if lane % 3 == 2 and lane < 3 * section[2]:
        return 2
    return 0


@given(st.lists(st.integers(0, 40), min_size=3, max_size=3))
def test_lanes_follow_the_rule(section: list[int]) -> None:
    assert list(lanes.interleaved_axes(section)) == [axis_of(lane, section) for lane in range(sum(section))]


def test_sections_that_do_not_cover_the_rotary_dimension() -> None:
    lanes.check_section([24, 20, 20], 128)
    with pytest.raises(ValueError, match=r"sums to 63.*needs 64"):
        lanes.check_section([24, 20, 19], 128)
    with pytest.raises(ValueError, match="three sizes"):
        lanes.check_section([32, 32], 128)


def cache(rotary_dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[CONTEXT, rotary_dim]: what SGLang computes at start-up."""
    inverse = 1.0 / (5e6 ** (torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim))
    angles = torch.arange(CONTEXT, dtype=torch.float64)[:, None] * inverse
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)


def truth(
    heads: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    section: list[int],
    head: int,
    neox: bool,
) -> torch.Tensor:
    """The rotation in float64, written from the definition, element by element over lanes."""
    half = sum(section)
    x = heads.double().view(heads.shape[0], -1, head)
    result = x.clone()
    for lane in range(half):
        first, second = (lane, lane + half) if neox else (2 * lane, 2 * lane + 1)
        where = positions[axis_of(lane, section)].long()
        cos = table[where, lane].to(heads.dtype).double()[:, None]
        sin = table[where, half + lane].to(heads.dtype).double()[:, None]
        result[..., first] = x[..., first] * cos - x[..., second] * sin
        result[..., second] = x[..., second] * cos + x[..., first] * sin
    return result.view(heads.shape)


# Two units in the last place of the largest element: the interpreter cuts where the hardware rounds, which
# moves cos and sin too. A wrong axis moves elements by their own size.
NOISE = {torch.float32: 2**-22, torch.float16: 2**-9, torch.bfloat16: 2**-6}


def draw(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rotate_both(tokens: int, **shape: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the kernel made, the truth) of queries and keys that are views into one projection."""
    head, neox, section = shape["head"], shape["neox"], shape["section"]
    query_heads, key_heads = shape["query_heads"], shape["key_heads"]
    dtype, position_dtype = shape["dtype"], shape["position_dtype"]
    rotary_dim = 2 * sum(section)
    width = (query_heads + 2 * key_heads) * head
    projection = draw(tokens, width, dtype=dtype, seed=1)
    untouched = projection[:, (query_heads + key_heads) * head :].clone()
    query = projection[:, : query_heads * head]
    key = projection[:, query_heads * head : (query_heads + key_heads) * head]
    # CUDA graphs pass a slice of a larger buffer.
    buffer = torch.randint(0, CONTEXT, (3, tokens + 5), generator=torch.Generator().manual_seed(2))
    positions = buffer.to(position_dtype)[:, :tokens]
    table = cache(rotary_dim)
    expected = torch.cat(
        [truth(x.clone(), table, positions, section, head, neox) for x in (query, key)], dim=-1
    )
    kernel.rotate_(query, key, table, positions, section, head, rotary_dim, neox)
    assert torch.equal(projection[:, (query_heads + key_heads) * head :], untouched)
    return projection[:, : (query_heads + key_heads) * head].double(), expected


NUMBERS = [
    {"dtype": torch.float32, "position_dtype": torch.int64, "neox": True},
    {"dtype": torch.float32, "position_dtype": torch.int32, "neox": False},
    {"dtype": torch.float16, "position_dtype": torch.int64, "neox": False},
    {"dtype": torch.bfloat16, "position_dtype": torch.int32, "neox": True},
]
HEADS = [
    {"head": 128, "section": [24, 20, 20]},
    {"head": 256, "section": [11, 11, 10]},  # partial rotary, as Qwen3.5
    {"head": 64, "section": [12, 10, 10]},
    {"head": 80, "section": [14, 13, 13]},
    {"head": 96, "section": [16, 16, 16]},
    {"head": 96, "section": [12, 10, 10]},
]
SIZES = [
    {"tokens": tokens, "query_heads": query_heads, "key_heads": key_heads}
    for tokens, query_heads, key_heads in ((1, 1, 1), (7, 5, 1), (3, 16, 2), (2, 3, 3), (1, 64, 4))
]


def assert_rotated(shape: dict[str, Any]) -> None:
    got, expected = rotate_both(**shape)
    assert float((got - expected).abs().max()) <= NOISE[shape["dtype"]] * float(
        expected.abs().max().clamp(min=1)
    )


@pytest.mark.parametrize("size", range(len(SIZES)))
@pytest.mark.parametrize("heads", range(len(HEADS)))
def test_kernel(heads: int, size: int) -> None:
    """Every shape of heads with every size, and each of these with every kind of numbers."""
    assert_rotated({**HEADS[heads], **SIZES[size], **NUMBERS[(heads + size) % len(NUMBERS)]})


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_kernel_in_every_combination(
    numbers: dict[str, Any], heads: dict[str, Any], size: dict[str, Any]
) -> None:
    assert_rotated({**numbers, **heads, **size})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("section", [[24, 20, 20], [11, 11, 10], [12, 10, 10], [5, 3, 1], [0, 3, 3]])
@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("position_dtype", [torch.int32, torch.int64])
def test_gathering_kernel(
    dtype: torch.dtype, section: list[int], tokens: int, position_dtype: torch.dtype
) -> None:
    # The cache of a partial rotary is a slice of a wider one in some releases.
    table = cache(2 * sum(section) + 2, dtype)[:, : 2 * sum(section)]
    buffer = torch.randint(0, CONTEXT, (3, tokens + 5), generator=torch.Generator().manual_seed(2))
    positions = buffer.to(position_dtype)[:, :tokens]
    rows, in_order = kernel.gather_rows_fused(table, positions, section)
    assert rows.dtype == dtype
    assert torch.equal(rows, gather_rows(table, positions, section))
    assert in_order.tolist() == list(range(tokens))


TRACE = """
from tests.lab import tracing  # first

import torch
from deepeyes_patch.mrope import kernel

def rotate(query, key, table, positions):
    kernel.rotate_(query, key, table, positions, [24, 20, 20], 128, 128, True)
    return query, key

def gather(query, key, table, positions):
    return kernel.gather_rows_fused(table, positions, [24, 20, 20])

for call in (rotate, gather):
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=tracing.backend(call.__name__))
    try:
        compiled(torch.ones(9, 512), torch.ones(9, 128), torch.ones(64, 128), torch.ones(3, 9).long())
    except tracing.Traced:
        pass
"""


def test_kernels_are_traced_in_one_graph() -> None:
    """Under ``torch.compile``: no graph break, one launch, no size burnt in."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", TRACE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line.partition(" ['[(s")[0] for line in done.stdout.splitlines()]
    assert lines == ["rotate 1", "gather 1"], done.stdout + done.stderr[-3000:]


def test_kernel_without_tokens() -> None:
    empty = torch.empty(0, 128)
    kernel.rotate_(
        empty, empty.clone(), cache(128), torch.empty(3, 0, dtype=torch.long), [24, 20, 20], 128, 128, True
    )


def test_kernel_refuses_what_it_cannot_rotate() -> None:
    good = torch.zeros(2, 128)
    positions = torch.zeros(3, 2, dtype=torch.long)
    with pytest.raises(ValueError, match="contiguous heads"):
        kernel.rotate_(torch.zeros(128, 2).T, good, cache(128), positions, [24, 20, 20], 128, 128, True)
    with pytest.raises(ValueError, match="contiguous heads"):
        kernel.rotate_(good, torch.zeros(2, 100), cache(128), positions, [24, 20, 20], 128, 128, True)


@settings(max_examples=25)
@given(
    section=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    tokens=st.integers(1, 9),
    dtype=st.sampled_from(list(NOISE)),
    position_dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_torch_rows_follow_the_rule(
    section: list[int], tokens: int, dtype: torch.dtype, position_dtype: torch.dtype
) -> None:
    table = cache(2 * sum(section)).to(dtype)
    positions = torch.randint(0, CONTEXT, (3, tokens)).to(position_dtype)
    rows = gather_rows(table, positions, section)
    for lane in range(sum(section)):
        where = positions[axis_of(lane, section)].long()
        assert torch.equal(rows[:, lane], table[where, lane])
        assert torch.equal(rows[:, sum(section) + lane], table[where, sum(section) + lane])
