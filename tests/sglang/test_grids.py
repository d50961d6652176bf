"""Grids and pixels of text prompts: the step that old releases put before the HF processor.

0.5.3 to 0.5.5.post1 round the sides of an image to multiples of 28. That is Qwen2.5-VL's factor; Qwen3-VL's
is 32, so its images were resized twice, and many got another grid than ``transformers`` gives them.
"""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
import torch

from tests.lab import models, processors, reference
from tests.sglang import rollouts

WAYS = ("default",)


def images() -> list[Any]:
    choose = random.Random(28)
    sizes = [(choose.randint(200, 1600), choose.randint(200, 1600)) for _ in range(200)]
    return [rollouts.picture(*size, seed=i) for i, size in enumerate(sizes)]


def differing(kind: models.Kind, processor: Any) -> tuple[int, int]:
    """(images with another grid, images with other pixels) than the HF processor makes."""
    folder = models.ensure(kind)
    text = rollouts.IMAGE + "What is it?"
    grids = pixels = 0
    for image in images():
        hf = reference.expand(folder, text, [image])
        got = processors.process(processor, text, [image])
        grids += got.grids.tolist() != hf.grids.tolist()
        pixels += not torch.equal(got.mm_items[0].feature, hf.pixel_values)
    return grids, pixels


@pytest.mark.skipif(
    not hasattr(inspect.getmodule(processors.processor_class()), "resize_image_async"),
    reason="this release hands images to the HF processor as they are",
)
class TestResizedTwice:
    def test_stock_differs_for_qwen3_vl(self) -> None:
        grids, pixels = differing("qwen3_vl", processors.build("qwen3_vl"))
        assert grids > 40
        assert pixels > 100

    def test_patched_equals_transformers(self, patched: None) -> None:
        assert differing("qwen3_vl", processors.build("qwen3_vl")) == (0, 0)

    def test_qwen2_5_vl_is_untouched(self, request: pytest.FixtureRequest) -> None:
        processor = processors.build("qwen2_5_vl")
        some = images()[:20]
        stock = [processors.process(processor, rollouts.IMAGE, [image]) for image in some]
        request.getfixturevalue("patched")
        for image, before in zip(some, stock, strict=True):
            after = processors.process(processor, rollouts.IMAGE, [image])
            assert after.input_ids == before.input_ids
            assert torch.equal(after.mm_items[0].feature, before.mm_items[0].feature)

    def test_other_users_of_the_function_are_untouched(self, patched: None) -> None:
        """``dots_vlm`` takes it from ``qwen_vl`` by name; outside a Qwen-VL request it is upstream's."""
        module = inspect.getmodule(processors.processor_class())
        resized = processors.run(module.resize_image_async(rollouts.picture(300, 300)))
        assert resized.size == (308, 308)
