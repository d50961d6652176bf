"""Byte-level BPE vocabularies in Qwen's layout: a tiny trained one and the real one.

A vocabulary is the ranked byte pieces and the merges that lead to them; Qwen's special tokens
follow directly after the pieces, so their ids differ between the two (the real ones start at
151643).

The tiny one ships with the package. ``python -m tests.lab.vocabularies`` trains it and writes the file.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path

from deepeyes_patch.verification.tiny import MERGES, Vocabulary, byte_alphabet, tiny

__all__ = ["Vocabulary", "qwen", "tiny"]

TINY_MERGES = 2000
# SHA-256 of the texts that the shipped merges were trained on: those of Python 3.11.7.
TRAINED_ON = "d816f8d22e0cf35d139a6b91ddbf71926779433fc91cdc3a126e599d8445e57e"


def corpus() -> list[str]:
    """The prose and code that ship with this Python."""
    from pydoc_data import topics

    return list(topics.topics.values())


def digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def train(texts: Iterable[str], merges: int = TINY_MERGES) -> Vocabulary:
    """A vocabulary of that many merges."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return Vocabulary(
        pieces=dict(sorted(model["vocab"].items(), key=lambda piece: piece[1])),
        merges=[(left, right) for left, right in model["merges"]],
    )


def merges_file(words: Vocabulary) -> str:
    """The text of the file that is shipped, in the format of ``merges.txt`` on the hub."""
    return "".join(["#version: 0.2\n", *(f"{left} {right}\n" for left, right in words.merges)])


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
    text_of = byte_alphabet()

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


if __name__ == "__main__":
    if digest(corpus()) != TRAINED_ON:
        raise SystemExit("this Python ships other texts: run it with the Python that TRAINED_ON names")
    Path(str(MERGES)).write_text(merges_file(train(corpus())), encoding="utf-8")
