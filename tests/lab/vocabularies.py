"""Byte-level BPE vocabularies in Qwen's layout: a tiny trained one and the real one.

A vocabulary is the ranked byte pieces and the merges that lead to them; Qwen's special tokens
follow directly after the pieces, so their ids differ between the two (the real ones start at
151643).
"""

from __future__ import annotations

import base64
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY_MERGES = 2000

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


def tiny() -> Vocabulary:
    """2,000 merges trained on the prose and code that ship with Python."""
    from pydoc_data import topics

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + TINY_MERGES,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(topics.topics.values(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return Vocabulary(
        pieces=dict(sorted(model["vocab"].items(), key=lambda piece: piece[1])),
        merges=[tuple(pair) for pair in model["merges"]],
    )


def qwen() -> Vocabulary:
    """The vocabulary of Qwen2 to Qwen3-VL, from the ``dashscope`` wheel."""
    package = importlib.util.find_spec("dashscope")
    if package is None or package.origin is None:
        raise RuntimeError("the real Qwen vocabulary comes with `dashscope`, which is missing here")
    ranks_file = Path(package.origin).parent / "resources" / "qwen.tiktoken"
    ranks: dict[bytes, int] = {}
    for line in ranks_file.read_text().splitlines():
        encoded, number = line.split()
        ranks[base64.b64decode(encoded)] = int(number)
    text_of = _byte_alphabet()

    def text(piece: bytes) -> str:
        return "".join(text_of[byte] for byte in piece)

    merges = []
    for piece, rank in ranks.items():
        if len(piece) > 1:
            left, right = _parts(piece, ranks, rank)
            merges.append((text(left), text(right)))
    return Vocabulary({text(piece): rank for piece, rank in ranks.items()}, merges)


def _parts(piece: bytes, ranks: dict[bytes, int], rank: int) -> tuple[bytes, bytes]:
    """The two pieces whose merge has this rank: what BPE leaves of it with all earlier merges."""
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 2:
        best, at = min((ranks.get(parts[i] + parts[i + 1], rank), i) for i in range(len(parts) - 1))
        if best >= rank:
            raise ValueError(f"no merges lead to the piece of rank {rank}")
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet.update({byte: chr(256 + i) for i, byte in enumerate(rest)})
    return alphabet
