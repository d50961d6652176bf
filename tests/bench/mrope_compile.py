"""Compile the M-RoPE kernels ahead of time, without a GPU: ``python -m tests.bench.mrope_compile``.

Prints registers, spills and shared memory for each card and shape, as ptxas reports them for the cubin, and
ends with 1 if anything spills.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from deepeyes_patch.mrope.kernel import block_sizes, gather_rows_kernel, interleaved_mrope_kernel

CARDS = {80: "sm_80 (A100)", 90: "sm_90 (H100, H200)", 120: "sm_120 (RTX PRO, 50 series)"}
# name -> dtype, query heads, key heads, head size, half of the rotary dimension, h and w sections
SHAPES = {
    "Qwen3-VL 8B, bf16": ("bf16", 32, 8, 128, 64, 20, 20),
    "Qwen3-VL 235B, TP 1, bf16": ("bf16", 64, 4, 128, 64, 20, 20),
    "Qwen3.5, partial rotary, bf16": ("bf16", 32, 2, 256, 32, 11, 10),
    "head 80, fp32": ("fp32", 16, 16, 80, 40, 13, 13),
}


def rotation(shape: tuple[str, int, int, int, int, int, int], capability: int) -> dict[str, int]:
    """REG, STACK (spills live there), SHARED of the kernel that rotates query and key."""
    dtype, query_heads, key_heads, head_size, half, section_h, section_w = shape
    lane_block, head_block = block_sizes(query_heads, key_heads, half)
    constants = {
        "query_heads": query_heads,
        "key_heads": key_heads,
        "head_size": head_size,
        "half": half,
        "section_h": section_h,
        "section_w": section_w,
        "neox": True,
        "lane_block": lane_block,
        "head_block": head_block,
    }
    arguments = {
        "query_ptr": f"*{dtype}",
        "key_ptr": f"*{dtype}",
        "cache_ptr": "*fp32",
        "positions_ptr": "*i64",
        **dict.fromkeys(("query_stride", "key_stride", "cache_stride", "axis_stride", "token_stride"), "i32"),
    }
    return resources(interleaved_mrope_kernel, arguments, constants, capability, num_warps=4)


def gathering(capability: int) -> dict[str, int]:
    """The same of the kernel that gathers rows, for Qwen3.5."""
    constants = {"half": 32, "section_h": 11, "section_w": 10, "lane_block": 32}
    arguments = {
        "rows_ptr": "*fp32",
        "in_order_ptr": "*i64",
        "cache_ptr": "*fp32",
        "positions_ptr": "*i64",
        **dict.fromkeys(("cache_stride", "axis_stride", "token_stride"), "i32"),
    }
    return resources(gather_rows_kernel, arguments, constants, capability, num_warps=1)


def resources(
    kernel: Any, arguments: dict[str, str], constants: dict[str, int], capability: int, num_warps: int
) -> dict[str, int]:
    signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(kernel, signature, constants)
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": num_warps})
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        report = subprocess.run(
            [_cuobjdump(), "--dump-resource-usage", str(cubin)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
    line = next(line for line in report.splitlines() if "REG:" in line)
    return {key: int(value) for key, value in (item.split(":")[:2] for item in line.split() if ":" in item)}


def _cuobjdump() -> str:
    """The one that comes with Triton."""
    return str(next(Path(triton.__file__).parent.rglob("cuobjdump")))


def main() -> int:
    spilled = False
    print(f"{'card':28} {'shape':32} {'registers':>9} {'spills (bytes)':>14} {'shared':>7}")
    for capability, card in CARDS.items():
        found = {name: rotation(shape, capability) for name, shape in SHAPES.items()}
        found["rows for Qwen3.5"] = gathering(capability)
        for name, used in found.items():
            spilled |= used["STACK"] > 0 or used["LOCAL"] > 0
            print(
                f"{card:28} {name:32} {used['REG']:9} {used['STACK'] + used['LOCAL']:14} {used['SHARED']:7}"
            )
    return int(spilled)


if __name__ == "__main__":
    sys.exit(main())
