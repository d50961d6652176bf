"""Pre-tokenized requests through the release's real Qwen-VL processor class, stock and patched."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deepeyes_patch
from tests.lab import models, processors
from tests.sglang import rollouts, ways
from tests.sglang.rollouts import SIZES, Request, assert_exact, attempt, picture

PICTURES = [picture(width, height) for width, height in SIZES]

REQUESTS: dict[str, Callable[[Path], Request]] = {
    "short": lambda f: rollouts.short(f, PICTURES[:2]),
    "short drifted": lambda f: rollouts.drifted(f, rollouts.short(f, PICTURES[:2]), "before"),
    "expanded": lambda f: rollouts.expanded(f, PICTURES[:2]),
    "expanded, one image": lambda f: rollouts.expanded(f, PICTURES[2:3]),
    "expanded, four images": lambda f: rollouts.expanded(f, PICTURES),
    "drift before": lambda f: rollouts.drifted(f, rollouts.expanded(f, PICTURES[:2]), "before"),
    "drift between": lambda f: rollouts.drifted(f, rollouts.expanded(f, PICTURES[:2]), "between"),
    "drift after": lambda f: rollouts.drifted(f, rollouts.expanded(f, PICTURES[:2]), "after"),
    "history expanded, new turn short": lambda f: rollouts.mixed(f, PICTURES[:3], {2}),
    "history short, new turn expanded": lambda f: rollouts.mixed(f, PICTURES[:3], {0, 1}),
    "adjacent images": lambda f: rollouts.expanded(f, PICTURES[:2], rollouts.IMAGE * 2 + "Compare."),
    "image first": lambda f: rollouts.expanded(f, PICTURES[:1], rollouts.IMAGE + "What is it?"),
    "image last": lambda f: rollouts.expanded(f, PICTURES[:1], "Look: " + rollouts.IMAGE),
    "image alone": lambda f: rollouts.expanded(f, PICTURES[:1], rollouts.IMAGE),
    "after special tokens": lambda f: rollouts.expanded(
        f, PICTURES[:1], f"<|im_start|><|im_end|><|endoftext|>{rollouts.IMAGE}<|vision_start|> x"
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_ids_offsets_and_positions_are_exact(name: str, folder: Path, processor: Any, patched: None) -> None:
    request = REQUESTS[name](folder)
    sent = list(request.ids)
    result = processors.process(processor, sent, request.images)
    assert_exact(folder, result, request)
    assert sent == request.ids, "the caller's list was changed"


def test_stock_fails_where_the_patch_is_needed(folder: Path, processor: Any) -> None:
    """What the package exists for: stock explodes on expanded ids, or serves other ids than sent."""
    request = rollouts.drifted(folder, rollouts.expanded(folder, PICTURES[:2]), "between")
    stock = attempt(processor, request)
    assert isinstance(stock, Exception) or stock.input_ids != request.expected_ids


def test_text_prompts_are_bit_for_bit_stock(
    folder: Path, processor: Any, request: pytest.FixtureRequest
) -> None:
    text = rollouts.conversation(2)
    stock = processors.process(processor, text, PICTURES[:2])
    request.getfixturevalue("patched")
    patched = processors.process(processor, text, PICTURES[:2])
    assert patched.input_ids == stock.input_ids
    assert patched.offsets == stock.offsets
    assert torch.equal(patched.mrope_positions, stock.mrope_positions)
    assert patched.mrope_position_delta == stock.mrope_position_delta
    assert patched.padded_input_ids == stock.padded_input_ids
    for ours, theirs in zip(patched.mm_items, stock.mm_items, strict=True):
        assert torch.equal(ours.feature, theirs.feature)


def test_features_are_those_of_the_text_prompt(folder: Path, processor: Any, patched: None) -> None:
    """Handing the HF processor placeholders only must not touch the pixels."""
    of_text = processors.process(processor, rollouts.conversation(2), PICTURES[:2])
    request = rollouts.expanded(folder, PICTURES[:2])
    of_ids = processors.process(processor, request.ids, request.images)
    ours = torch.cat([item.feature for item in of_ids.mm_items])
    assert torch.equal(ours, torch.cat([item.feature for item in of_text.mm_items]))


def test_other_sequences_of_ids(folder: Path, processor: Any, patched: None) -> None:
    """``Engine`` takes what it is given; stock dies on anything but a list."""
    request = rollouts.expanded(folder, PICTURES[:1])
    for ids in (
        tuple(request.ids),
        torch.tensor(request.ids).numpy(),
        list(torch.tensor(request.ids).numpy()),
    ):
        assert_exact(folder, processors.process(processor, ids, request.images), request)


# --- refusals -----------------------------------------------------------------------------------------


def _without(ids: list[int], position: int) -> list[int]:
    return ids[:position] + ids[position + 1 :]


def _with(ids: list[int], position: int, *values: int) -> list[int]:
    return ids[:position] + list(values) + ids[position:]


class Good:
    """A good request of two images, to be spoilt: ids, spans, token ids, counts."""

    def __init__(self, folder: Path) -> None:
        request = rollouts.expanded(folder, PICTURES[:2])
        self.folder = folder
        self.ids, self.images = request.ids, request.images
        self.tokens = rollouts.vision(folder)
        (self.first, self.last), (self.second, self.second_last) = rollouts.spans(folder, self.ids)
        self.counts = (self.last - self.first + 1, self.second_last - self.second + 1)


# name -> ids, images, a regular expression that the message must match
REFUSALS: dict[str, Callable[[Good], tuple[list[int], list[Any], str]]] = {
    "one pad too few": lambda g: (
        _without(g.ids, g.second),
        g.images,
        rf"image 1 of 2.*hold {g.counts[1] - 1} .*makes {g.counts[1]} \(grid_thw .*max_pixels",
    ),
    "one pad too many": lambda g: (
        _with(g.ids, g.first, g.tokens.image),
        g.images,
        rf"image 0 of 2.*hold {g.counts[0] + 1} .*makes {g.counts[0]} \(grid_thw .*min_pixels",
    ),
    "an image missing": lambda g: (g.ids, g.images[:1], r"2 image span.*1 image"),
    "an image too many": lambda g: (g.ids, [*g.images, PICTURES[2]], r"2 image span.*3 image"),
    "images swapped": lambda g: (g.ids, g.images[::-1], r"image 0 of 2"),
    "a stray pad before the span": lambda g: (
        _with(g.ids, g.first - 1, g.tokens.image),
        g.images,
        rf"position {g.first - 1} without vision_start",
    ),
    "a stray pad after the span": lambda g: (
        _with(g.ids, g.last + 2, g.tokens.image),
        g.images,
        rf"position {g.last + 2} without vision_start",
    ),
    "a pad that the model sampled": lambda g: (
        [*g.ids, g.tokens.image],
        g.images,
        rf"position {len(g.ids)} without vision_start",
    ),
    "a whole span that the model sampled": lambda g: (
        [*g.ids, g.tokens.start, g.tokens.image, g.tokens.end],
        g.images,
        r"3 image span.*2 image",
    ),
    "vision_end missing": lambda g: (
        _without(g.ids, g.last + 1),
        g.images,
        rf"positions {g.first} to {g.last} without vision_end",
    ),
    "vision_start missing": lambda g: (
        _without(g.ids, g.first - 1),
        g.images,
        rf"positions {g.first - 1} to {g.last - 1} without vision_start",
    ),
    "ids end within a span": lambda g: (
        g.ids[: g.second_last + 1],
        g.images,
        rf"positions {g.second} to {g.second_last} without vision_end",
    ),
    "one run for two images": lambda g: (
        [g.tokens.start, *[g.tokens.image] * sum(g.counts), g.tokens.end],
        g.images,
        r"1 image span.*2 image",
    ),
    "a long run with nothing around it": lambda g: (
        [*rollouts.tokenize(g.folder, "Look: "), *[g.tokens.image] * g.counts[0]],
        g.images[:1],
        r"without vision_start",
    ),
    "a video pad without a video": lambda g: (
        [*g.ids, g.tokens.start, g.tokens.video, g.tokens.end],
        g.images,
        rf"video placeholder.*position {len(g.ids) + 1}",
    ),
    "an id beyond the vocabulary": lambda g: (
        [*g.ids, 10**7],
        g.images,
        rf"10000000 at position {len(g.ids)}",
    ),
    "a negative id": lambda g: ([-7, *g.ids], g.images, r"-7 at position 0"),
    "no span at all": lambda g: (
        rollouts.tokenize(g.folder, "What is this?"),
        g.images,
        r"0 image span.*2",
    ),
    "no ids at all": lambda g: ([], g.images, r"0 image span.*2"),
}


# These alone are decided after SGLang has made the images; the others, by the ids, before it runs.
AFTER_SGLANG = ("one pad too few", "one pad too many", "images swapped")


def test_swapped_images_of_equal_counts_are_served_as_sent(
    folder: Path, processor: Any, patched: None
) -> None:
    """Ids and images fit both ways, so nobody can tell; the positions are those of the images that came."""
    wide, high = rollouts.picture(448, 224), rollouts.picture(224, 448)
    meant, sent = rollouts.expanded(folder, [wide, high]), rollouts.expanded(folder, [high, wide])
    assert meant.ids == sent.ids
    assert_exact(folder, processors.process(processor, meant.ids, sent.images), sent)


def check_refused(name: str, folder: Path, processor: Any) -> None:
    """Refused with its message, and the next request is right."""
    ids, images, message = REFUSALS[name](Good(folder))
    with pytest.raises(deepeyes_patch.RefusedRequest, match=message) as caught:
        processors.process(processor, ids, images)
    # 0.5.20 and later take these words in a ValueError as a signal to try something else.
    assert "prompt placeholders" not in str(caught.value)
    good = rollouts.expanded(folder, PICTURES[:2])
    assert_exact(folder, processors.process(processor, good.ids, good.images), good)


@pytest.mark.parametrize("name", AFTER_SGLANG)
def test_refused_with_a_message(name: str, folder: Path, processor: Any, patched: None) -> None:
    check_refused(name, folder, processor)


@pytest.mark.parametrize("kind", ["qwen3_vl"])
@pytest.mark.parametrize("name", [name for name in REFUSALS if name not in AFTER_SGLANG])
def test_refused_by_the_ids(name: str, folder: Path, patched: None) -> None:
    """What the ids alone decide is in tests/unit; here, that it leaves SGLang's method as it is."""
    check_refused(name, folder, ways.build(folder))


def test_lone_markers_are_legal_text(folder: Path, processor: Any, patched: None) -> None:
    request = rollouts.expanded(folder, PICTURES[:1])
    tokens = rollouts.vision(folder)
    ids = [tokens.start, *request.ids, tokens.end, tokens.start]
    assert_exact(folder, processors.process(processor, ids, request.images), Request(ids, PICTURES[:1], ids))


def test_ids_that_spell_the_markers_are_legal_text(folder: Path, processor: Any, patched: None) -> None:
    """Decoded, these ids hold one marker more than there are images; nothing may decode and search."""
    from tests.lab import reference

    tokenizer = reference.processor(folder).tokenizer
    letters = [i for c in rollouts.IMAGE for i in tokenizer.encode(c, add_special_tokens=False)]
    assert tokenizer.decode(letters) == rollouts.IMAGE
    real = rollouts.expanded(folder, PICTURES[:1]).ids
    for ids in (letters + real, real + letters):
        request = Request(ids, PICTURES[:1], ids)
        assert_exact(folder, processors.process(processor, ids, request.images), request)


def test_an_image_of_one_token_where_both_readings_agree(folder: Path, tmp_path: Path, patched: None) -> None:
    if hasattr(inspect.getmodule(processors.processor_class()), "resize_image_async"):
        pytest.skip("this release enlarges every image to four tokens before the HF processor sees it")
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    side = 2 * models.PATCH_SIZE[folder.name.split("-")[0]]
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings.pop("size", None)
    settings |= {"min_pixels": 1, "max_pixels": side * side}
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    tokens = rollouts.vision(folder)
    ids = [tokens.start, tokens.image, tokens.end]
    request = Request(ids, [picture(side, side)], ids)
    result = processors.process(processors.build(tmp_path), ids, request.images)
    assert_exact(folder, result, request, grids=torch.tensor([[1, 2, 2]]))


# --- concurrency --------------------------------------------------------------------------------------


def test_concurrent_requests_do_not_mix(folder: Path, processor: Any, patched: None) -> None:
    kinds = ["expanded", "short", "drift between", "history expanded, new turn short"]
    requests = [REQUESTS[kinds[i % 4]](folder) for i in range(24)]
    requests = [
        Request([*r.ids, 100 + i], r.images, [*r.expected_ids, 100 + i]) for i, r in enumerate(requests)
    ]
    bad = rollouts.expanded(folder, PICTURES[:2])
    before = copy.deepcopy([r.ids for r in requests])

    async def run() -> list[Any]:
        good = [processors.process_async(processor, r.ids, r.images) for r in requests]
        broken = [processors.process_async(processor, bad.ids[5:], bad.images[:1]) for _ in range(4)]
        mixed = [task for pair in zip(good[:4], broken, strict=True) for task in pair] + good[4:]
        return await asyncio.wait_for(asyncio.gather(*mixed, return_exceptions=True), 120)

    results = processors.run(run())
    served = [result for result in results if not isinstance(result, Exception)]
    refused = [result for result in results if isinstance(result, Exception)]
    assert len(served) == 24
    assert [type(error) for error in refused] == [deepeyes_patch.RefusedRequest] * 4
    for request, result in zip(requests, served, strict=True):
        assert_exact(folder, result, request)
    assert [r.ids for r in requests] == before
