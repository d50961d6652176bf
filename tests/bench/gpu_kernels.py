"""Our Triton kernels against the reference, and in a CUDA graph: ``python -m tests.bench.gpu_kernels``.

The reference is written from the definition, in float64, one lane at a time. ``--device cpu`` runs the
kernels in Triton's interpreter (``TRITON_INTERPRET=1``) and captures nothing. Ends with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator

import torch

from deepeyes_patch.mrope import kernel, lanes
from deepeyes_patch.mrope.rotation import gather_rows

CONTEXT = 4096
# (head, section): Qwen3-VL, Qwen3.5 (a quarter of the head turns), and odd sizes.
SHAPES = ((128, [24, 20, 20]), (256, [11, 11, 10]), (80, [14, 13, 13]), (96, [12, 10, 10]))
HEADS = ((32, 8), (16, 2), (5, 1))
TOKENS = {"cuda": (1, 7, 512, 4096), "cpu": (1, 7)}
# Units in the last place of the largest element. Triton's interpreter cuts where the hardware rounds.
NOISE = {torch.float32: 2**-21, torch.float16: 2**-9, torch.bfloat16: 2**-6}


def table(rotary_dim: int, device: str) -> torch.Tensor:
    """cos and sin, [CONTEXT, rotary_dim], float32."""
    inverse = 1.0 / (5e6 ** (torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim))
    angles = torch.arange(CONTEXT, dtype=torch.float64)[:, None] * inverse
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float().to(device)


def definition(
    x: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, section: list[int], head: int, neox: bool
) -> torch.Tensor:
    """The rotation of [tokens, heads * head] in float64."""
    half = sum(section)
    heads = x.double().view(x.shape[0], -1, head)
    result = heads.clone()
    for lane, axis in enumerate(lanes.interleaved_axes(section)):
        first, second = (lane, lane + half) if neox else (2 * lane, 2 * lane + 1)
        where = positions[axis].long()
        cos = rows[where, lane].to(x.dtype).double()[:, None]
        sin = rows[where, half + lane].to(x.dtype).double()[:, None]
        result[..., first] = heads[..., first] * cos - heads[..., second] * sin
        result[..., second] = heads[..., second] * cos + heads[..., first] * sin
    return result.view(x.shape)


def strided_positions(tokens: int, device: str) -> torch.Tensor:
    """[3, tokens], as CUDA graphs pass them: a slice of a larger buffer."""
    return torch.randint(0, CONTEXT, (3, tokens + 64), device=device)[:, :tokens]


def rotations(device: str) -> Iterator[tuple[str, float, float]]:
    """(what was rotated, the largest error, the error that is allowed)."""
    for (head, section), (queries, keys), tokens, dtype, neox in itertools.product(
        SHAPES, HEADS, TOKENS[device], NOISE, (True, False)
    ):
        width = (queries + 2 * keys) * head
        projection = torch.randn(tokens, width, device=device).to(dtype)
        query, key = projection[:, : queries * head], projection[:, queries * head : (queries + keys) * head]
        positions, rows = strided_positions(tokens, device), table(2 * sum(section), device)
        expected = [definition(x.clone(), rows, positions, section, head, neox) for x in (query, key)]
        values = projection[:, (queries + keys) * head :].clone()
        kernel.rotate_(query, key, rows, positions, section, head, 2 * sum(section), neox)
        error = max(
            float((x.double() - right).abs().max()) for x, right in zip((query, key), expected, strict=True)
        )
        if not torch.equal(values, projection[:, (queries + keys) * head :]):
            error = float("inf")
        allowed = NOISE[dtype] * max(1.0, *(float(right.abs().max()) for right in expected))
        kind = str(dtype).removeprefix("torch.")
        yield f"head {head}, {queries}+{keys} heads, {tokens} tokens, {kind}, neox {neox}", error, allowed


def gatherings(device: str) -> Iterator[tuple[str, float, float]]:
    for (_, section), tokens in itertools.product(SHAPES, TOKENS[device]):
        positions, rows = strided_positions(tokens, device), table(2 * sum(section), device)
        got, in_order = kernel.gather_rows_fused(rows, positions, section)
        right = gather_rows(rows, positions, section)
        error = float((got - right).abs().max())
        if in_order.tolist() != list(range(tokens)):
            error = float("inf")
        yield f"rows of section {section}, {tokens} tokens", error, 0.0


def replay(work: Callable[[], None]) -> Callable[[], None]:
    """``work``, captured in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles the kernel, which a capture cannot
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return lambda: graph.replay()


def captures(device: str) -> Iterator[tuple[str, float, float]]:
    """A graph is captured once, and replayed on other positions and numbers. On a CPU it is not captured."""
    head, section = SHAPES[0]
    queries, keys = HEADS[0]
    dtype = torch.bfloat16
    rows = table(2 * sum(section), device)
    for tokens in TOKENS[device]:
        query = torch.zeros(tokens, queries * head, dtype=dtype, device=device)
        key = torch.zeros(tokens, keys * head, dtype=dtype, device=device)
        positions = strided_positions(tokens, device)

        def work(q: torch.Tensor = query, k: torch.Tensor = key, p: torch.Tensor = positions) -> None:
            kernel.rotate_(q, k, rows, p, section, head, 2 * sum(section), True)

        again = replay(work) if device == "cuda" else work
        error = allowed = 0.0
        for _ in range(3):
            query.copy_(torch.randn(query.shape, device=device))
            key.copy_(torch.randn(key.shape, device=device))
            positions.copy_(strided_positions(tokens, device))
            right = definition(query.clone(), rows, positions, section, head, True)
            again()
            error = max(error, float((query.double() - right).abs().max()))
            allowed = max(allowed, NOISE[dtype] * float(right.abs().max()))
        yield f"{'replayed' if device == 'cuda' else 'called'} on {tokens} tokens", error, allowed


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--device", choices=tuple(TOKENS), default="cuda")
    device = arguments.parse_args().device
    torch.manual_seed(0)
    print(torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter, no capture")
    print(f"{'':10} {'cases':>6} {'wrong':>6} {'largest error':>14} {'of allowed':>11}")
    wrong = 0
    for name, cases in (
        ("rotate", rotations(device)),
        ("gather", gatherings(device)),
        ("capture", captures(device)),
    ):
        done = list(cases)
        bad = [what for what, error, allowed in done if not error <= allowed]
        wrong += len(bad)
        largest = max(error for _, error, _ in done)
        share = max((error / allowed for _, error, allowed in done if allowed), default=0.0)
        print(f"{name:10} {len(done):6} {len(bad):6} {largest:14.3g} {share:11.2f}", flush=True)
        for what in bad[:10]:
            print(f"  WRONG: {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
