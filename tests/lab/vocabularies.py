"""Byte-level BPE vocabularies in Qwen's layout: a tiny trained one and the real one.

A vocabulary is the ranked byte pieces and the merges that lead to them; Qwen's special tokens
follow directly after the pieces, so their ids differ between the two (the real ones start at
151643).
"""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path

from deepeyes_patch.verification.tiny import Vocabulary, tiny

__all__ = ["Vocabulary", "qwen", "tiny"]


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
