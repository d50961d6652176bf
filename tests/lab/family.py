"""The other models that SGLang's Qwen-VL processor serves, tiny and without weights.

For a processor only the configuration, the tokenizer and the image processor's settings matter. Laid out like
the real repositories; what is not about the processor is as small as the configuration classes allow. Models
that need weights, because a server runs them, are in `models`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any, Literal

from deepeyes_patch.verification import tiny
from tests.lab import models, processors, reference, vocabularies
from tests.lab.installed import has_module
from tests.lab.vocabularies import Vocabulary

Kind = Literal[
    "qwen2_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_omni_moe",
    "paddleocr_vl",
    "intern_s2_preview",
    "interns2_mobius",
    "cosmos3_omni",
    "qwen4_exp",
]

ARCHITECTURES: dict[Kind, str] = {
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_omni_moe": "Qwen3OmniMoeForConditionalGeneration",
    "paddleocr_vl": "PaddleOCRVLForConditionalGeneration",
    "intern_s2_preview": "InternS2PreviewForConditionalGeneration",
    "interns2_mobius": "InternS2MobiusForConditionalGeneration",
    "cosmos3_omni": "Cosmos3ForConditionalGeneration",
    "qwen4_exp": "Qwen4ExpForConditionalGeneration",
}

# Where the release keeps the model.
_MODELS: dict[Kind, str] = {
    "qwen2_vl": "qwen2_vl",
    "qwen3_vl_moe": "qwen3_vl_moe",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_omni_moe": "qwen3_omni_moe",
    "paddleocr_vl": "paddleocr_vl",
    "intern_s2_preview": "interns2preview",
    "interns2_mobius": "interns2_mobius",
    "cosmos3_omni": "cosmos3",
    "qwen4_exp": "qwen4_exp",
}

# Models whose configuration SGLang has and `transformers` has not, and the one of `transformers` that they
# are made like: they have its schema, its HF processor and, for images and videos, its positions.
_LIKE: dict[Kind, Literal["qwen3_vl_moe", "qwen3_5_moe"]] = {
    "intern_s2_preview": "qwen3_5_moe",
    "interns2_mobius": "qwen3_5_moe",
    "cosmos3_omni": "qwen3_vl_moe",
    "qwen4_exp": "qwen3_5_moe",
}

# Tokens that the two models outside the Qwen-VL line have beside Qwen's own.
_MORE_TOKENS: dict[Kind, dict[str, str]] = {
    "qwen3_omni_moe": {
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
        "audio_token": "<|audio_pad|>",
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
    },
    "paddleocr_vl": {
        "vision_bos_token": "<|IMAGE_START|>",
        "image_token": "<|IMAGE_PLACEHOLDER|>",
        "vision_eos_token": "<|IMAGE_END|>",
        "video_token": "<|VIDEO_PLACEHOLDER|>",
    },
}

_HEADS = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def served() -> list[Kind]:
    """The kinds that the installed release has a model for, without importing it.

    One that its ``transformers`` does not know, nor what it is made like, is left out: PaddleOCR-VL needs
    code from the hub then, and for Qwen3.5 on 0.5.9 there is nothing to compare with.
    """
    kinds = [kind for kind, name in _MODELS.items() if has_module(f"sglang.srt.models.{name}")]
    return [kind for kind in kinds if has_module(f"transformers.models.{_LIKE.get(kind, kind)}")]


def processor_class(kind: Kind) -> type:
    """The release's class for the kind: the Qwen module's own, or one derived from it."""
    if kind != "paddleocr_vl":
        return processors.processor_class()
    return derived_class("paddleocr_vlm", "PaddleOCRVLImageProcessor")


def derived_class(module: str, name: str) -> type:
    """A class that SGLang derives from its Qwen-VL processor."""
    processors.processor_class()
    found: type = getattr(importlib.import_module(f"sglang.srt.multimodal.processors.{module}"), name)
    return found


def ensure(kind: Kind) -> Path:
    """The folder of a tiny checkpoint without weights, written on the first call."""
    recipe = hashlib.sha256(Path(__file__).read_bytes() + models.recipe().encode()).hexdigest()[:12]
    return models.cached(f"{kind}-bare-{recipe}", lambda folder: _write(kind, folder))


def _write(kind: Kind, folder: Path) -> None:
    words = vocabularies.tiny()
    added = _MORE_TOKENS.get(kind, {})
    known = tiny.SPECIAL_TOKENS + tiny.ADDED_TOKENS
    more = [token for token in added.values() if token not in known]
    words.write(folder)
    tokenizer = models.tokenizer_config(words)
    first = len(words.pieces) + len(known)
    backend = json.loads((folder / "tokenizer.json").read_text())
    for number, token in enumerate(more, start=first):
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
        tokenizer["added_tokens_decoder"][str(number)] = {"content": token, **flags}
        backend["added_tokens"].append({"id": number, "content": token, **flags})
    ids = {token: words.id_of(token) for token in known} | {t: first + i for i, t in enumerate(more)}
    if added:
        tokenizer["extra_special_tokens"] = added
        tokenizer.pop("additional_special_tokens")
    files = {
        "config.json": {
            "architectures": [ARCHITECTURES[kind]],
            "model_type": kind,
            **_config(kind, words, ids),
        },
        "tokenizer.json": backend,
        "tokenizer_config.json": tokenizer,
        **_preprocessor_configs(kind),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False))
    if like := _LIKE.get(kind):
        (folder / reference.LIKE).mkdir()
        (folder / reference.LIKE / "config.json").write_text(json.dumps(_config(like, words, ids)))


def _preprocessor_configs(kind: Kind) -> dict[str, dict[str, Any]]:
    """The real bounds: sizes decide how many tokens an image has."""
    older = models.preprocessor_configs("qwen2_5_vl")
    if kind == "qwen2_vl":
        (image,) = older.values()
        return {"preprocessor_config.json": {**image, "processor_class": "Qwen2VLProcessor"}}
    if kind == "paddleocr_vl":
        (image,) = older.values()
        own = {
            "min_pixels": 147384,
            "max_pixels": 2822400,
            "temporal_patch_size": 1,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "image_processor_type": "PaddleOCRVLImageProcessor",
            "processor_class": "PaddleOCRVLProcessor",
        }
        return {"preprocessor_config.json": {**image, **own}}
    if kind == "qwen3_omni_moe":
        (image,) = older.values()
        own = {
            "patch_size": 16,
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": 128,
            "sampling_rate": 16000,
            "processor_class": "Qwen3OmniMoeProcessor",
        }
        return {"preprocessor_config.json": {**image, **own}}
    return models.preprocessor_configs("qwen3_vl")


def _config(kind: Kind, words: Vocabulary, ids: dict[str, int]) -> dict[str, Any]:
    rows = -(-len(ids | words.pieces) // 128) * 128
    if kind == "qwen2_vl":
        description = models.config("qwen2_5_vl", words)
        vision = {
            "depth": 1,
            "embed_dim": 64,
            "hidden_size": description["hidden_size"],
            "num_heads": 4,
            "patch_size": 14,
            "spatial_merge_size": models.MERGE_SIZE,
            "temporal_patch_size": 2,
        }
        return {
            **description,
            "model_type": kind,
            "architectures": [ARCHITECTURES[kind]],
            "vision_config": vision,
        }
    description = models.config("qwen3_vl", words)
    text = {**description["text_config"], **_HEADS, "vocab_size": rows}
    vision = {**description["vision_config"], "depth": 4, "out_hidden_size": text["hidden_size"]}
    line = _LIKE.get(kind, kind)
    if line == "qwen3_vl_moe":
        text |= {**_EXPERTS, "decoder_sparse_step": 1, "model_type": "qwen3_vl_moe_text"}
        vision["model_type"] = kind
    if line in ("qwen3_5", "qwen3_5_moe"):
        text |= {
            **(_EXPERTS if line == "qwen3_5_moe" else {}),
            "model_type": f"{kind}_text",
            "full_attention_interval": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "rope_parameters": {**text.pop("rope_scaling"), "rope_theta": text.pop("rope_theta")},
        }
        vision["model_type"] = kind
        vision.pop("deepstack_visual_indexes")
    if kind == "qwen3_omni_moe":
        return {"thinker_config": _thinker(text, vision, ids)}
    if kind == "paddleocr_vl":
        return _paddleocr(text, ids)
    return {
        **description,
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "text_config": text,
        "vision_config": vision,
    }


def _thinker(text: dict[str, Any], vision: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "qwen3_omni_moe_thinker",
        "architectures": ["Qwen3OmniMoeThinkerForConditionalGeneration"],
        "audio_config": {
            "model_type": "qwen3_omni_moe_audio_encoder",
            "d_model": 32,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "output_dim": text["hidden_size"],
        },
        "text_config": {**text, **_EXPERTS, "model_type": "qwen3_omni_moe_text"},
        "vision_config": {**vision, "model_type": "qwen3_omni_moe_vision_encoder"},
        "audio_token_id": ids["<|audio_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "user_token_id": ids["<|im_start|>"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }


def _paddleocr(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        "text_config": {**text, "model_type": "paddleocr_vl_text"},
        "vision_config": {
            "model_type": "paddleocr_vl_vision",
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "patch_size": 14,
            "tokens_per_second": 2,
            "spatial_merge_size": models.MERGE_SIZE,
        },
        "image_token_id": ids["<|IMAGE_PLACEHOLDER|>"],
        "video_token_id": ids["<|VIDEO_PLACEHOLDER|>"],
        "vision_start_token_id": ids["<|IMAGE_START|>"],
        "vision_end_token_id": ids["<|IMAGE_END|>"],
    }
