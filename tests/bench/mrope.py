"""Our rotation beside upstream's on a GPU: ``.lab/0.5.3/bin/python -m tests.bench.mrope``.

In one run, for decode and prefill sizes of Qwen3-VL 8B (32 query heads, 8 key heads of 128, bf16, views into
a fused projection): our kernel, the compiled ``forward`` of SGLang 0.5.3 (which this environment holds), the
newest upstream Triton kernel (out of the lab's newest release), and a copy of the same bytes. Medians of
`triton.testing.do_bench`, which empties the cache before each call; GB/s count q and k once in and once out.

Without CUDA it says so and ends with 0.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import ModuleType

import torch

from deepeyes_patch.mrope import kernel
from tests.lab import environments
from tests.lab.releases import RELEASES

QUERY_HEADS, KEY_HEADS, HEAD, SECTION, CONTEXT = 32, 8, 128, [24, 20, 20], 65536
TOKENS = [1, 4, 16, 64, 256, 1024, 4096, 8192, 32768]


def newest_upstream() -> ModuleType:
    """The module with the newest release's kernel, loaded by itself."""
    newest = list(RELEASES.values())[-1]
    file = environments.overlay(newest) / "sglang/kernels/ops/attention/rotary_triton.py"
    spec = importlib.util.spec_from_file_location("newest_rotary_triton", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def calls(tokens: int, newest: ModuleType) -> tuple[dict[str, Callable[[], object]], int]:
    """(what to measure, bytes of q and k, in and out)."""
    from sglang.srt.layers.rotary_embedding import MRotaryEmbedding

    width = (QUERY_HEADS + 2 * KEY_HEADS) * HEAD
    projection = torch.randn(tokens, width, dtype=torch.bfloat16, device="cuda")
    query, key, _ = projection.split([QUERY_HEADS * HEAD, KEY_HEADS * HEAD, KEY_HEADS * HEAD], dim=-1)
    # As CUDA graphs pass them: a slice of a larger buffer
    positions = torch.randint(0, CONTEXT, (3, tokens + 64), device="cuda")[:, :tokens]
    rope = MRotaryEmbedding(HEAD, HEAD, CONTEXT, 5e6, True, torch.bfloat16, mrope_section=SECTION).cuda()
    source = torch.empty(tokens, (QUERY_HEADS + KEY_HEADS) * HEAD, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: kernel.rotate_(query, key, rope.cos_sin_cache, positions, SECTION, HEAD, HEAD, True),
        "0.5.3": lambda: rope.forward(positions, query, key),
        "newest": lambda: newest.triton_mrope_fused(
            query, key, rope.cos_sin_cache, positions, SECTION, HEAD, HEAD, True, False, True, None
        ),
        "copy": lambda: target.copy_(source),
    }
    return ways, 2 * source.nbytes


def main() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is measured")
        return
    import triton.testing

    newest = newest_upstream()
    print(torch.cuda.get_device_name())
    print(f"{'tokens':>7} {'way':8} {'us':>9} {'GB/s':>8} {'of copy':>8}")
    for tokens in TOKENS:
        ways, moved = calls(tokens, newest)
        milliseconds = {
            name: triton.testing.do_bench(call, return_mode="median") for name, call in ways.items()
        }
        for name, taken in milliseconds.items():
            print(
                f"{tokens:7} {name:8} {1e3 * taken:9.2f} {moved / taken / 1e6:8.0f} "
                f"{milliseconds['copy'] / taken:8.2f}"
            )


if __name__ == "__main__":
    main()
