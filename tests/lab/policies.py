"""A tiny policy that samples placeholders: at many places each is more probable than any other token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.lab import models, reference

# What is sampled, and its mean logit in a text; behind images it is about half of that. The logits of the
# 2,268 other tokens are within 0.6 of zero.
LOGITS = {"image_token_id": 18.0, "video_token_id": 17.0, "vision_start_token_id": 17.0}
WORDS = "<|im_start|>user\nWhere is the red cup? Zoom in when you are not sure.<|im_end|>\n" * 20


def placeholders(folder: Path) -> list[int]:
    """The tokens that the policy likes to sample."""
    config = json.loads((folder / "config.json").read_text())
    return [config[name] for name in LOGITS]


def ensure() -> Path:
    """The folder of the checkpoint: the tiny Qwen3-VL, with other weights for these tokens in its head."""
    return models.cached(f"qwen3_vl-placeholders-{models.recipe()}", _write)


def _write(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    base = models.ensure("qwen3_vl")
    shutil.copytree(base, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    ids = torch.tensor([reference.expand(base, WORDS).input_ids])
    with torch.inference_mode():
        hidden = reference.model(base).model(input_ids=ids).last_hidden_state[0]
    # The normalized hidden states lie around one direction, so that a token along it is probable everywhere.
    mean = hidden.mean(dim=0)
    weights = load_file(folder / "model.safetensors")
    head = weights["lm_head.weight"].clone()
    for token, logit in zip(placeholders(base), LOGITS.values(), strict=True):
        head[token] = (mean / mean.dot(mean) * logit).to(head.dtype)
    save_file({**weights, "lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
