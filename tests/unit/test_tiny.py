"""The tiny vocabulary that ships with the package is the one that the recipe trains."""

from __future__ import annotations

import pytest

from deepeyes_patch.verification import tiny
from tests.lab import vocabularies


def test_the_file_is_what_the_recipe_makes() -> None:
    texts = vocabularies.corpus()
    if vocabularies.digest(texts) != vocabularies.TRAINED_ON:
        pytest.skip("this Python ships other texts than the one that the merges were trained with")
    trained = vocabularies.train(texts)
    assert vocabularies.merges_file(trained) == tiny.MERGES.read_text(encoding="utf-8")
    assert tiny.tiny() == trained


def test_the_merges_alone_decide_the_vocabulary() -> None:
    """On any texts: a trained vocabulary is the bytes in order, and then what each merge makes."""
    trained = vocabularies.train(["low lower lowest", "Größe, 大小, 🙂, size"] * 3, merges=20)
    assert len(trained.merges) == 20
    assert tiny.from_merges(trained.merges) == trained


def test_the_merges_are_ranked() -> None:
    """Each merge joins two pieces of lower rank, and makes a new one."""
    words = tiny.tiny()
    assert len(words.merges) == vocabularies.TINY_MERGES
    assert list(words.pieces.values()) == list(range(256 + vocabularies.TINY_MERGES))
    for left, right in words.merges:
        assert max(words.pieces[left], words.pieces[right]) < words.pieces[left + right]


def test_the_alphabet_is_that_of_tokenizers() -> None:
    from tokenizers import pre_tokenizers

    assert sorted(tiny.byte_alphabet().values()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert len(tiny.byte_alphabet()) == 256
