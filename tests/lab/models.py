"""Tiny seeded Qwen checkpoints, laid out like the real ones on the hub.

``ensure("qwen3_vl")`` gives a folder that every release of the lab loads. Weights are written by
name and shape, not by some version's model class, so the same bytes serve all releases. The cache
is keyed by the recipe, which is this module, `vocabularies`, and `deepeyes_patch.verification.tiny` with its
merges.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepeyes_patch.verification import tiny
from deepeyes_patch.verification.tiny import (
    CHAT_TEMPLATE,
    MERGE_SIZE,
    PATCH_SIZE,
    preprocessor_configs,
    qwen3_vl_config,
    text_config,
    token_ids,
    tokenizer_config,
)
from tests.lab import vocabularies
from tests.lab.environments import COMPLETE, cache, locked
from tests.lab.vocabularies import Vocabulary

if TYPE_CHECKING:
    import torch

Kind = Literal["qwen3_vl", "qwen2_5_vl"]
KINDS: tuple[Kind, ...] = ("qwen3_vl", "qwen2_5_vl")
# Without a vision tower, to show that such a model is left alone.
TextKind = Literal["qwen3"]

SEED = 20240229
PEAKED = 1.6  # enlarges queries and keys, each


def ensure(kind: Kind | TextKind, vocabulary: Literal["tiny", "qwen"] = "tiny") -> Path:
    """The folder of a tiny checkpoint, built on the first call.

    ``vocabulary="qwen"`` is the real one (image token 151655), for tests where real ids matter.
    """

    def write(folder: Path) -> None:
        _write(kind, vocabularies.tiny() if vocabulary == "tiny" else vocabularies.qwen(), folder)

    return cached(f"{kind}-{vocabulary}-{recipe()}", write)


def cached(name: str, write: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache, filled by ``write`` on the first call, whole or not at all."""
    folder = cache() / "models" / name
    if (folder / COMPLETE).exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(folder.name + ".lock")):
        if not (folder / COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            building = Path(tempfile.mkdtemp(dir=folder.parent))
            write(building)
            (building / COMPLETE).touch()
            building.chmod(0o755)
            os.rename(building, folder)
    return folder


def config(kind: Kind | TextKind, words: Vocabulary) -> dict[str, Any]:
    """``config.json``, in the spelling of the real repositories (rope_scaling, rope_theta)."""
    if kind == "qwen3":
        return _qwen3_config(words)
    return qwen3_vl_config(words) if kind == "qwen3_vl" else _qwen2_5_vl_config(words)


def recipe() -> str:
    """What the cached folders depend on, as a digest."""
    sources = [Path(__file__), Path(vocabularies.__file__), Path(tiny.__file__), tiny.MERGES]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def _write(kind: Kind | TextKind, words: Vocabulary, folder: Path) -> None:
    description = config(kind, words)
    if kind == "qwen3":
        shapes = decoder_shapes(description, "model", description["head_dim"], qwen3=True)
    elif kind == "qwen3_vl":
        shapes = qwen3_vl_shapes(description)
    else:
        shapes = _qwen2_5_vl_shapes(description)
    write(folder, words, description, shapes, {} if kind == "qwen3" else preprocessor_configs(kind))


def write(
    folder: Path,
    words: Vocabulary,
    description: dict[str, Any],
    shapes: Shapes,
    preprocessors: dict[str, dict[str, Any]],
) -> None:
    """A whole checkpoint of seeded weights."""
    from safetensors.torch import save_file

    words.write(folder)
    files = {
        "config.json": description,
        "tokenizer_config.json": tokenizer_config(words),
        "chat_template.json": {"chat_template": CHAT_TEMPLATE},
        "generation_config.json": {
            "bos_token_id": words.id_of("<|endoftext|>"),
            "pad_token_id": words.id_of("<|endoftext|>"),
            "eos_token_id": [words.id_of("<|im_end|>"), words.id_of("<|endoftext|>")],
            "do_sample": True,
            "temperature": 0.7,
            "top_k": 20,
            "top_p": 0.8,
        },
        **preprocessors,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False))
    save_file(_weights(shapes), folder / "model.safetensors", {"format": "pt"})


def _qwen3_config(words: Vocabulary) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **text_config(words),
        "attention_bias": False,
        "head_dim": 128,
        "hidden_size": 128,
        "max_window_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_sliding_window": False,
    }


def _qwen2_5_vl_config(words: Vocabulary) -> dict[str, Any]:
    text = {
        **text_config(words),
        "hidden_size": 256,  # two heads of 128: this family has no head_dim of its own
        "max_window_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"},
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "use_sliding_window": False,
    }
    vision = {
        "depth": 4,
        "fullatt_block_indexes": [1, 3],
        "hidden_act": "silu",
        "hidden_size": 64,
        "in_chans": 3,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": text["hidden_size"],
        "patch_size": PATCH_SIZE["qwen2_5_vl"],
        "spatial_merge_size": MERGE_SIZE,
        "spatial_patch_size": PATCH_SIZE["qwen2_5_vl"],
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 112,
    }
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        **token_ids(words),
        "vision_token_id": words.id_of("<|vision_pad|>"),
        **text,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.41.2",
        "vision_config": vision,
    }


Shapes = dict[str, tuple[int, ...]]


def _linear(name: str, inputs: int, outputs: int, bias: bool) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs)}
    return {**shapes, f"{name}.bias": (outputs,)} if bias else shapes


def decoder_shapes(text: dict[str, Any], prefix: str, head_dim: int, qwen3: bool) -> Shapes:
    hidden, inner = text["hidden_size"], text["intermediate_size"]
    queries = text["num_attention_heads"] * head_dim
    keys = text["num_key_value_heads"] * head_dim
    shapes: Shapes = {
        f"{prefix}.embed_tokens.weight": (text["vocab_size"], hidden),
        f"{prefix}.norm.weight": (hidden,),
        "lm_head.weight": (text["vocab_size"], hidden),
    }
    for number in range(text["num_hidden_layers"]):
        layer = f"{prefix}.layers.{number}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            **_linear(f"{layer}.self_attn.q_proj", hidden, queries, bias=not qwen3),
            **_linear(f"{layer}.self_attn.k_proj", hidden, keys, bias=not qwen3),
            **_linear(f"{layer}.self_attn.v_proj", hidden, keys, bias=not qwen3),
            **_linear(f"{layer}.self_attn.o_proj", queries, hidden, bias=False),
            **_linear(f"{layer}.mlp.gate_proj", hidden, inner, bias=False),
            **_linear(f"{layer}.mlp.up_proj", hidden, inner, bias=False),
            **_linear(f"{layer}.mlp.down_proj", inner, hidden, bias=False),
        }
        if qwen3:
            shapes[f"{layer}.self_attn.q_norm.weight"] = (head_dim,)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (head_dim,)
    return shapes


def qwen3_vl_shapes(description: dict[str, Any]) -> Shapes:
    text, vision = description["text_config"], description["vision_config"]
    hidden, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    merged = hidden * MERGE_SIZE**2
    tower = "model.visual"
    shapes: Shapes = {
        f"{tower}.patch_embed.proj.weight": (hidden, 3, 2, patch, patch),
        f"{tower}.patch_embed.proj.bias": (hidden,),
        f"{tower}.pos_embed.weight": (vision["num_position_embeddings"], hidden),
    }
    for number in range(vision["depth"]):
        block = f"{tower}.blocks.{number}"
        for norm in ("norm1", "norm2"):
            shapes |= {f"{block}.{norm}.weight": (hidden,), f"{block}.{norm}.bias": (hidden,)}
        shapes |= _linear(f"{block}.attn.qkv", hidden, 3 * hidden, bias=True)
        shapes |= _linear(f"{block}.attn.proj", hidden, hidden, bias=True)
        shapes |= _linear(f"{block}.mlp.linear_fc1", hidden, inner, bias=True)
        shapes |= _linear(f"{block}.mlp.linear_fc2", inner, hidden, bias=True)
    # The last merger norms patches, the deepstack ones norm what is already merged.
    mergers = {f"{tower}.merger": hidden}
    for number in range(len(vision["deepstack_visual_indexes"])):
        mergers[f"{tower}.deepstack_merger_list.{number}"] = merged
    for merger, normed in mergers.items():
        shapes |= {f"{merger}.norm.weight": (normed,), f"{merger}.norm.bias": (normed,)}
        shapes |= _linear(f"{merger}.linear_fc1", merged, merged, bias=True)
        shapes |= _linear(f"{merger}.linear_fc2", merged, text["hidden_size"], bias=True)
    decoder = decoder_shapes(text, "model.language_model", text["head_dim"], qwen3=True)
    return {**shapes, **decoder}


def _qwen2_5_vl_shapes(description: dict[str, Any]) -> Shapes:
    vision = description["vision_config"]
    hidden, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    merged = hidden * MERGE_SIZE**2
    shapes: Shapes = {"visual.patch_embed.proj.weight": (hidden, 3, 2, patch, patch)}
    for number in range(vision["depth"]):
        block = f"visual.blocks.{number}"
        shapes |= {f"{block}.norm1.weight": (hidden,), f"{block}.norm2.weight": (hidden,)}
        shapes |= _linear(f"{block}.attn.qkv", hidden, 3 * hidden, bias=True)
        shapes |= _linear(f"{block}.attn.proj", hidden, hidden, bias=True)
        shapes |= _linear(f"{block}.mlp.gate_proj", hidden, inner, bias=True)
        shapes |= _linear(f"{block}.mlp.up_proj", hidden, inner, bias=True)
        shapes |= _linear(f"{block}.mlp.down_proj", inner, hidden, bias=True)
    shapes["visual.merger.ln_q.weight"] = (hidden,)
    shapes |= _linear("visual.merger.mlp.0", merged, merged, bias=True)
    shapes |= _linear("visual.merger.mlp.2", merged, vision["out_hidden_size"], bias=True)
    head_dim = description["hidden_size"] // description["num_attention_heads"]
    return {**shapes, **decoder_shapes(description, "model", head_dim, qwen3=False)}


def _weights(shapes: Shapes) -> dict[str, torch.Tensor]:
    """Seeded bf16 weights, scaled so that positions show in the log-probs.

    With the usual deviation of 0.02 attention is almost uniform, and then a wrong position changes
    nothing. So queries and keys are enlarged until attention is peaked, and what attention finds
    outweighs the token's own embedding. The head is small because logits are bf16: below 1 their
    steps stay under 0.004, far less than what a wrong position does.
    """
    import torch

    generator = torch.Generator().manual_seed(SEED)

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        noise = torch.randn(shape, generator=generator)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            return PEAKED * (1 + 0.05 * noise)
        if len(shape) == 1:
            return 0.05 * noise if name.endswith("bias") else 1 + 0.05 * noise
        if name.endswith("embed_tokens.weight"):
            return 0.25 * noise
        if name.endswith("pos_embed.weight"):
            return noise
        gain, inputs = 1.0, math.prod(shape[1:])
        if ".experts." in name:  # [experts, inputs, outputs]
            inputs = shape[1]
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            gain = PEAKED
        elif name.endswith("o_proj.weight"):
            gain = 2.0
        elif name == "lm_head.weight":
            gain = 0.12
        return gain * noise / math.sqrt(inputs)

    return {name: draw(name, shape).to(torch.bfloat16) for name, shape in shapes.items()}
