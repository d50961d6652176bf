"""The real Qwen vocabulary, and ids as a model samples them: other splits of the same text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.lab import models, processors, reference
from tests.sglang import rollouts
from tests.sglang.rollouts import IMAGE, Request, assert_exact, picture

TEXTS = {
    "English": "The quick brown fox jumps over the lazy dog; its coordinates are approximately here.",
    "Chinese": "请告诉我图片中左上角那只猫的准确坐标，并解释你的推理过程。",
    "code": "def crop(image, bbox=(0.25, 1e-3)):\n\treturn [x**2 for x in range(len(bbox))]  # noqa\n",
    "digits": "2025-11-29 12345678901234567890 3.14159 1,000,000 0x7fff [[12, 345, 6789, 10]]",
}


@pytest.fixture(scope="module", params=models.KINDS)
def real(request: pytest.FixtureRequest) -> Path:
    return models.ensure(request.param, vocabulary="qwen")


def sampled(folder: Path, text: str, seed: int) -> list[int]:
    """A random way to spell ``text`` with the vocabulary's tokens: cut it anywhere, tokenize the pieces."""
    tokenizer = reference.processor(folder).tokenizer
    choose = random.Random(seed)
    ids, position = [], 0
    while position < len(text):
        end = position + choose.randint(1, 7)
        ids += tokenizer.encode(text[position:end], add_special_tokens=False)
        position = end
    assert tokenizer.decode(ids) == text
    return ids


@pytest.mark.parametrize("name", TEXTS)
def test_sampled_ids_are_kept(name: str, real: Path, patched: None) -> None:
    processor = processors.build(real)
    tokens = rollouts.vision(real)
    assert tokens.image == 151655
    image = picture(448, 224)
    seen = rollouts.expanded(real, [image], IMAGE).ids
    canonical = rollouts.tokenize(real, TEXTS[name])
    drifting = 0
    for seed in range(5):
        before, after = sampled(real, TEXTS[name], seed), sampled(real, TEXTS[name], seed + 100)
        drifting += before != canonical
        ids = [*before, *seen, *after]
        result = processors.process(processor, list(ids), [image])
        assert_exact(real, result, Request(ids, [image], ids))
    assert drifting, "no sample differs from what the tokenizer writes"


@pytest.mark.parametrize("name", TEXTS)
def test_stock_drifts_on_them(name: str, real: Path) -> None:
    """One placeholder per image, which every stock release serves: other ids than sent come out."""
    processor = processors.build(real)
    image = picture(448, 224)
    ids = [*sampled(real, TEXTS[name], 0), *rollouts.tokenize(real, IMAGE), *sampled(real, TEXTS[name], 1)]
    seen = rollouts.expanded(real, [image], IMAGE).ids
    start = rollouts.spans(real, ids)[0][0] - 1
    expected = [*ids[:start], *seen, *ids[start + 3 :]]
    stock = processors.process(processor, list(ids), [image]).input_ids
    keeps = hasattr(processors.processor_class(), "_expand_input_ids") or hasattr(
        processors.processor_class(), "compose_image_artifacts"
    )
    assert (stock == expected) == keeps
