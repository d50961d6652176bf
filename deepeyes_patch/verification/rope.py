"""A model's rotary embedding: ``transformers``' own, and SGLang's for the same config."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from deepeyes_patch.seams import table_mrope

TOKENS, HEADS, CONTEXT = 200, 2, 4096


def describe(core: Any) -> dict[str, Any]:
    """The arguments for SGLang's ``get_rope``, from a `deepeyes_patch.verification.expected.rope_owner`."""
    text = core.config.get_text_config()
    scaling = dict(getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {})
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    partial = (
        scaling.pop("partial_rotary_factor", None) or getattr(text, "partial_rotary_factor", None) or 1.0
    )
    theta = scaling.pop("rope_theta", None) or text.rope_theta
    return {"head": head, "rotary": int(head * partial), "theta": float(theta), "scaling": scaling}


def inputs(description: dict[str, Any]) -> tuple[Any, Any]:
    """Seeded positions int64 [3, TOKENS], as images have them, and heads float32 [TOKENS, HEADS * head]."""
    import torch

    generator = torch.Generator().manual_seed(3)
    positions = torch.randint(0, CONTEXT, (3, TOKENS), generator=generator)
    return positions, torch.randn(TOKENS, HEADS * description["head"], generator=generator)


def by_transformers(core: Any, description: dict[str, Any]) -> Any:
    """The heads of `inputs` rotated by the model's own class, float32 [TOKENS, HEADS * head]."""
    text = core.config.get_text_config()
    owner = getattr(core, "language_model", core)
    cls = type(owner.rotary_emb)
    module = sys.modules[cls.__module__]
    positions, query = inputs(description)
    cos, sin = cls(text)(query, positions[:, None])
    split = query.view(1, TOKENS, HEADS, description["head"]).transpose(1, 2)
    if cos.shape[0] == 3:  # Qwen2-VL and Qwen2.5-VL choose among the axes when they rotate
        section = description["scaling"]["mrope_section"]
        rotated, _ = module.apply_multimodal_rotary_pos_emb(split, split, cos, sin, section)
    else:
        rotated, _ = module.apply_rotary_pos_emb(split, split, cos, sin)
    return rotated.transpose(1, 2).reshape(TOKENS, -1)


def by_sglang(description: dict[str, Any], always_interleaved: bool) -> Any:
    """The same heads rotated by the rope that SGLang's ``get_rope`` gives to a new model."""
    import torch

    module: Any = importlib.import_module(table_mrope.ROTARY_EMBEDDING)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    positions, query = inputs(description)
    arguments = {
        "rotary_dim": description["rotary"],
        "max_position": CONTEXT,
        "base": description["theta"],
        "rope_scaling": description["scaling"],
        "dtype": torch.float32,
    }
    if "deepeyes_patch.mrope.building" in sys.modules and always_interleaved:
        from deepeyes_patch.mrope import building

        with building.building():
            rope = module.get_rope(description["head"], **arguments)
    else:
        rope = module.get_rope(description["head"], **arguments)
    rope = rope.to(device)
    q, k = query.to(device), query.clone().to(device)
    rotated, _ = rope.forward(positions.to(device), q, k)
    return rotated.float().cpu()
