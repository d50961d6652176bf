"""A tiny Qwen3-VL checkpoint without weights, laid out like the real ones on the hub.

Processors and positions depend on the configuration and the tokenizer alone. The vocabulary is byte-level BPE
in Qwen's layout: the ranked byte pieces and the merges that lead to them, and Qwen's special tokens directly
after. ``tests/lab/vocabularies.py`` says how the merges were trained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

CONTEXT = 32768

MERGES = resources.files("deepeyes_patch.verification") / "tiny_merges.txt"

# Qwen's own order. The first fourteen are "special" (never printed), the rest are plain additions.
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"),
    *("<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
ADDED_TOKENS = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
)

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# What the processors and the model must know of the vision tower. PATCH_SIZE * MERGE_SIZE pixels of a side
# make one token.
PATCH_SIZE = {"qwen3_vl": 16, "qwen2_5_vl": 14}
MERGE_SIZE = 2

CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'video' or 'video' in part %}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


@dataclass(frozen=True)
class Vocabulary:
    """``pieces``: text form -> id, in rank order; ``merges``: pairs, in rank order."""

    pieces: dict[str, int]
    merges: list[tuple[str, str]]

    def id_of(self, token: str) -> int:
        """The id of a special or added token."""
        return len(self.pieces) + (SPECIAL_TOKENS + ADDED_TOKENS).index(token)

    def padded_size(self, multiple: int = 128) -> int:
        """Rows of the embedding: Qwen pads its table, so some rows belong to no token."""
        size = len(self.pieces) + len(SPECIAL_TOKENS) + len(ADDED_TOKENS)
        return -(-size // multiple) * multiple

    def added_tokens(self) -> dict[int, dict[str, Any]]:
        return {
            self.id_of(token): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token in SPECIAL_TOKENS,
            }
            for token in SPECIAL_TOKENS + ADDED_TOKENS
        }

    def write(self, folder: Path) -> None:
        """``tokenizer.json`` for fast tokenizers, ``vocab.json`` and ``merges.txt`` for slow."""
        merges = [f"{left} {right}" for left, right in self.merges]
        (folder / "vocab.json").write_text(json.dumps(self.pieces, ensure_ascii=False))
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        }
        split = {"pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False}
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, **token} for i, token in self.added_tokens().items()],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Split", **split}, byte_level],
            },
            "post_processor": byte_level,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": self.pieces,
                "merges": merges,
            },
        }
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + number) for number, byte in enumerate(others)
    }


def from_merges(merges: Sequence[tuple[str, str]]) -> Vocabulary:
    """A vocabulary of the 256 bytes, followed by the piece that each merge makes."""
    pieces = [*sorted(byte_alphabet().values()), *(left + right for left, right in merges)]
    return Vocabulary({piece: rank for rank, piece in enumerate(pieces)}, list(merges))


def tiny() -> Vocabulary:
    """The vocabulary that is shipped: 2,000 merges, trained on the prose and code that ship with Python."""
    _, *lines = MERGES.read_text(encoding="utf-8").splitlines()
    return from_merges([(left, right) for left, right in (line.split(" ") for line in lines)])


def write(folder: Path) -> None:
    """Write the checkpoint's files into ``folder``."""
    words = tiny()
    words.write(folder)
    files = {
        "config.json": qwen3_vl_config(words),
        "tokenizer_config.json": tokenizer_config(words),
        "chat_template.json": {"chat_template": CHAT_TEMPLATE},
        **preprocessor_configs("qwen3_vl"),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False))


def tokenizer_config(words: Vocabulary) -> dict[str, Any]:
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): token for i, token in words.added_tokens().items()},
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": CONTEXT,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def preprocessor_configs(kind: str) -> dict[str, dict[str, Any]]:
    """The real bounds and normalisation: sizes decide how many tokens an image has."""
    patches = {"patch_size": PATCH_SIZE[kind], "temporal_patch_size": 2, "merge_size": MERGE_SIZE}
    if kind == "qwen2_5_vl":
        image = {
            "min_pixels": 3136,
            "max_pixels": 12845056,
            **patches,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
        }
        # As in the real repository, this one file configures images and videos.
        return {"preprocessor_config.json": image}
    shared = {
        **patches,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    return {
        "preprocessor_config.json": {
            "size": {"longest_edge": 16777216, "shortest_edge": 65536},
            **shared,
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
        "video_preprocessor_config.json": {
            "size": {"longest_edge": 25165824, "shortest_edge": 4096},
            **shared,
            "video_processor_type": "Qwen3VLVideoProcessor",
        },
    }


def token_ids(words: Vocabulary) -> dict[str, int]:
    return {
        "image_token_id": words.id_of("<|image_pad|>"),
        "video_token_id": words.id_of("<|video_pad|>"),
        "vision_start_token_id": words.id_of("<|vision_start|>"),
        "vision_end_token_id": words.id_of("<|vision_end|>"),
    }


def text_config(words: Vocabulary) -> dict[str, Any]:
    return {
        "attention_dropout": 0.0,
        "bos_token_id": words.id_of("<|endoftext|>"),
        "eos_token_id": words.id_of("<|im_end|>"),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "intermediate_size": 256,
        "max_position_embeddings": CONTEXT,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-06,
        "use_cache": True,
        "vocab_size": words.padded_size(),
    }


def qwen3_vl_config(words: Vocabulary) -> dict[str, Any]:
    text = {
        **text_config(words),
        "attention_bias": False,
        "dtype": "bfloat16",
        "head_dim": 128,
        "hidden_size": 128,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [24, 20, 20],
            "rope_type": "default",
        },
        "rope_theta": 5000000,
    }
    vision = {
        "deepstack_visual_indexes": [1, 2, 3],
        "depth": 4,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "model_type": "qwen3_vl",
        "num_heads": 4,
        "num_position_embeddings": 2304,
        "out_hidden_size": text["hidden_size"],
        "patch_size": PATCH_SIZE["qwen3_vl"],
        "spatial_merge_size": MERGE_SIZE,
        "temporal_patch_size": 2,
    }
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        **token_ids(words),
        "text_config": text,
        "tie_word_embeddings": False,
        "transformers_version": "4.57.0",
        "vision_config": vision,
    }
