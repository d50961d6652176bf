"""A stock and a patched server on a GPU, beside ``transformers``: ``python -m tests.bench.gpu_servers``.

Run with the interpreter of a complete SGLang for CUDA. The model is tiny and random, with the head sizes of
the real one, so that its CUDA kernels run: Qwen3-VL, or Qwen3.5 (whose weights ``transformers`` makes). The
log-probs of each answer are compared with those of ``transformers`` in float32 on the CPU. ``--device cpu``
starts the lab's CPU servers; Qwen3.5 has none. Ends with 1 if an answer of the patched server is not exact.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import torch

from tests.e2e import measure, shapes
from tests.lab import family, flags, models, server

KINDS = ("qwen3_vl", "qwen3_5")
# What replaces the lab's settings for CPUs; the last value of a flag counts.
CUDA_FLAGS = ("--device", "cuda", "--attention-backend", "triton", "--mem-fraction-static", "0.3")
CUDA_ENVIRONMENT = {
    **dict.fromkeys((*flags.ENVIRONMENT, *server.QUICK)),
    # Compiled for the first request, torch.compile's code would take longer than a request may.
    "TORCHDYNAMO_DISABLE": "1",
}
# As in Qwen3.5: a quarter of a head of 256 turns, so that its fused kernel is called.
QWEN3_5 = {
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
QWEN3_5_ROPE = {"mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 1e7}


def qwen3_5(folder: Path) -> Path:
    """Write a tiny Qwen3.5 with weights into ``folder``. Needs a ``transformers`` that has the model."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    shutil.copytree(family.ensure("qwen3_5"), folder, dirs_exist_ok=True)
    description = json.loads((folder / "config.json").read_text())
    text = description["text_config"]
    text |= {**QWEN3_5, "rope_parameters": {**text["rope_parameters"], **QWEN3_5_ROPE}}
    (folder / "config.json").write_text(json.dumps(description))
    torch.manual_seed(models.SEED)
    made = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    made.to(torch.bfloat16).save_pretrained(folder / "made")
    for file in (folder / "made").glob("*.safetensors"):
        file.rename(folder / file.name)
    shutil.rmtree(folder / "made")
    return folder


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--kind", choices=KINDS, required=True)
    arguments.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    chosen = arguments.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to end, we stop the server
    on_cuda = chosen.device == "cuda"
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="gpu-") as scratch:
        folder = models.ensure("qwen3_vl") if chosen.kind == "qwen3_vl" else qwen3_5(Path(scratch))
        print(f"SGLang {flags.installed().version}, {chosen.kind}, {chosen.device}")
        print(f"{'server':8} {'request':24} {'due':>5} {'HTTP':>5} {'used':>5} {'error':>8}")
        for name, environment in measure.SERVERS.items():
            env = {**environment, **(CUDA_ENVIRONMENT if on_cuda else {})}
            with server.serve(folder, env=env, args=CUDA_FLAGS if on_cuda else ()) as running:
                for title, sent, answer in measure.exchanges(folder, running.url):
                    verdict = shapes.judge(folder, sent, answer)
                    error = "-" if verdict.error is None else f"{verdict.error:.4f}"
                    word = "exact" if verdict.exact else "not exact"
                    print(
                        f"{name:8} {title:24} {len(sent.expected_ids):5} {verdict.status or '-':>5} "
                        f"{verdict.tokens_used or '-':>5} {error:>8} {word}",
                        flush=True,
                    )
                    wrong += name == "patched" and not verdict.exact
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
