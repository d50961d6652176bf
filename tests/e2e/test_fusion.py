"""Qwen3-VL-MoE on two ranks with SGLang's default all-reduce fusion: what stock makes of deepstack features.

The fusion needs Hopper or Blackwell, and flashinfer. So the servers are of a copy of the release in which
two things differ: SGLang decides to fuse as it does there, and the fused collective is plain torch. The
model, its layers and the order of additions are the release's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import SHAPES
from tests.lab import altered, moe, server

# Where a fused pass loses the features (0.5.16), and where each rank adds them (0.5.19).
FAULTY = ("0.5.16", "0.5.19")

COLLECTIVE = """

def flashinfer_allreduce_residual_rmsnorm(input_tensor, residual, weight, eps=1e-6, **more):
    from sglang.srt.distributed import tensor_model_parallel_all_reduce

    total = tensor_model_parallel_all_reduce(input_tensor.clone()) + residual
    wide = total.float()
    scale = (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight.float()).to(total.dtype), total
"""


HEAD = "def apply_flashinfer_allreduce_fusion(batch_size: int):\n"
EDITS = {
    "srt/layers/communicator.py": altered.replacing(
        HEAD, f"{HEAD}    return 0 < batch_size <= FUSE_ALLREDUCE_MAX_BATCH_SIZE\n"
    ),
    "srt/layers/flashinfer_comm_fusion.py": lambda source: source + COLLECTIVE,
}


@pytest.mark.parametrize("fused", [False, True], ids=["alone", "fused"])
def test_stock(fused: bool, release: str, tmp_path: Path) -> None:
    if release not in FAULTY:
        pytest.skip(f"tried on {' and '.join(FAULTY)}")
    folder = moe.ensure()
    args, env = server.tensor_parallel(2)
    if fused:
        env["PYTHONPATH"] = str(altered.copy(tmp_path, EDITS))
    settings = {**shapes.STOCK, **env, "LAB_PAGEABLE": "1"}
    with server.serve(folder, env=settings, args=[*args, "--dtype", "float32"]) as running:
        words = shapes.text(folder, "Only words, and no picture at all.")
        assert shapes.judge(folder, words, shapes.ask(running.url, words)).exact
        images = SHAPES["text"](folder)
        verdict = shapes.judge(folder, images, shapes.ask(running.url, images))
    assert verdict.status == 200
    assert verdict.exact != fused, verdict
    if fused:
        assert (verdict.error or 0) > shapes.WRONG, verdict
