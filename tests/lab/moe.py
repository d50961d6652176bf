"""A tiny seeded Qwen3-VL with mixtures of experts, laid out like the real ones on the hub.

Beside the tiny Qwen3-VL of `models`, each layer has a router and experts in place of one MLP.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from deepeyes_patch.verification.tiny import preprocessor_configs, qwen3_vl_config
from tests.lab import models, vocabularies
from tests.lab.models import Shapes
from tests.lab.vocabularies import Vocabulary

LAYERS, EXPERTS, PICKED = 3, 16, 4
INNER = 96  # of one expert


def ensure() -> Path:
    """The folder of the checkpoint, built on the first call."""
    recipe = hashlib.sha256(Path(__file__).read_bytes() + models.recipe().encode()).hexdigest()[:12]
    return models.cached(f"qwen3_vl_moe-tiny-{recipe}", _write)


def _write(folder: Path) -> None:
    words = vocabularies.tiny()
    description = _config(words)
    models.write(folder, words, description, _shapes(description), preprocessor_configs("qwen3_vl"))


def _config(words: Vocabulary) -> dict[str, Any]:
    dense = qwen3_vl_config(words)
    text = {
        **dense["text_config"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "model_type": "qwen3_vl_moe_text",
        "moe_intermediate_size": INNER,
        "norm_topk_prob": True,
        "num_experts": EXPERTS,
        "num_experts_per_tok": PICKED,
        "num_hidden_layers": LAYERS,
    }
    return {
        **dense,
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe",
        "text_config": text,
        "vision_config": {**dense["vision_config"], "model_type": "qwen3_vl_moe"},
    }


def _shapes(description: dict[str, Any]) -> Shapes:
    hidden = description["text_config"]["hidden_size"]
    dense = models.qwen3_vl_shapes(description)
    decoder = "model.language_model."
    shapes = {
        name: shape for name, shape in dense.items() if not (name.startswith(decoder) and ".mlp." in name)
    }
    for number in range(LAYERS):
        mlp = f"{decoder}layers.{number}.mlp"
        shapes |= {
            f"{mlp}.gate.weight": (EXPERTS, hidden),
            # As on the hub: inputs before outputs, unlike every other weight.
            f"{mlp}.experts.gate_up_proj": (EXPERTS, hidden, 2 * INNER),
            f"{mlp}.experts.down_proj": (EXPERTS, INNER, hidden),
        }
    return shapes
