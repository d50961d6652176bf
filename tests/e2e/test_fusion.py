"""Qwen3-VL-MoE on two ranks with SGLang's default all-reduce fusion: its deepstack features.

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

ROUNDING = 5e-6  # of a float32 server beside transformers; without the fusion, it is off by 5e-7

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


@pytest.mark.parametrize(
    ("fused", "repairs"),
    [(False, None), (True, None), (True, "deepstack")],
    ids=["alone", "fused", "fused, repaired"],
)
def test_features(fused: bool, repairs: str | None, release: str, tmp_path: Path) -> None:
    if release not in FAULTY:
        pytest.skip(f"tried on {' and '.join(FAULTY)}")
    folder = moe.ensure()
    args, env = server.tensor_parallel(2)
    if fused:
        env["PYTHONPATH"] = str(altered.copy(tmp_path, EDITS))
    settings = {**shapes.STOCK, "DEEPEYES_PATCH": repairs, **env, "LAB_PAGEABLE": "1"}
    with server.serve(folder, env=settings, args=[*args, "--dtype", "float32"]) as running:
        words = shapes.text(folder, "Only words, and no picture at all.")
        assert shapes.judge(folder, words, shapes.ask(running.url, words)).exact
        images = SHAPES["text"](folder)
        verdict = shapes.judge(folder, images, shapes.ask(running.url, images))
        log = running.log_text()
    assert verdict.status == 200
    assert ("deepstack: patched (Qwen3MoeLLMModel)" in log) == (repairs is not None)
    if fused and repairs is None:
        assert (verdict.error or 0) > shapes.WRONG, verdict
    else:
        assert verdict.exact, verdict
        assert verdict.error is not None
        assert verdict.error < ROUNDING, verdict
