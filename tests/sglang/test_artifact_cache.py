"""SGLang's cache of preprocessed images (``--mm-preprocess-cache-size-mb``, 0.5.20 and later), on and off.

With the cache on, Qwen2.5-VL takes the artifact path too, which it does not take otherwise.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from deepeyes_patch.errors import RefusedRequest
from tests.lab import models, processors, reference
from tests.lab.processors import Processed
from tests.sglang import rollouts
from tests.sglang.rollouts import Request, picture


def preprocesses_into_the_cache() -> bool:
    """The server has the flag one release before Qwen-VL's processor makes anything that could be kept."""
    from sglang.srt.server_args import ServerArgs

    has_the_flag = "mm_preprocess_cache_size_mb" in inspect.signature(ServerArgs).parameters
    return has_the_flag and hasattr(processors.processor_class(), "compose_image_artifacts")


pytestmark = pytest.mark.skipif(
    not preprocesses_into_the_cache(), reason="this release keeps no preprocessed images of Qwen-VL"
)

SIZES = {"off": 0, "on": 64}  # MiB
SIZE = (448, 224)


@pytest.fixture(params=SIZES)
def cache(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def served(kind: models.Kind, cache: str) -> Any:
    """A processor of its own, whose cache is empty."""
    processor = processors.build(kind, mm_preprocess_cache_size_mb=SIZES[cache])
    assert processor.mm_preprocess_cache.enabled == (cache == "on")
    return processor


def seeded(*seeds: int) -> list[Image.Image]:
    """Pictures of one size, so that the same ids fit all of them."""
    return [picture(*SIZE, seed=seed) for seed in seeds]


def with_images(request: Request, images: Sequence[Image.Image]) -> Request:
    return Request(request.ids, list(images), request.expected_ids)


def assert_exact(folder: Path, result: Processed, request: Request) -> None:
    """As everywhere, and the features are those of the request's own images."""
    rollouts.assert_exact(folder, result, request)
    pixels = reference.processor(folder).image_processor(images=request.images, return_tensors="pt")
    features = torch.cat([torch.as_tensor(item.feature) for item in result.mm_items])
    assert torch.equal(features, pixels["pixel_values"].to(features.dtype))


def expanded(folder: Path, images: Sequence[Image.Image]) -> Request:
    return rollouts.drifted(folder, rollouts.expanded(folder, images), "between")


def test_a_repeated_image(folder: Path, served: Any, cache: str, patched: None) -> None:
    request = expanded(folder, seeded(1, 2))
    for _ in range(3):
        assert_exact(folder, processors.process(served, request.ids, request.images), request)
    assert served.mm_preprocess_cache.hits == (4 if cache == "on" else 0)


def test_stock_fails_with_and_without(folder: Path, served: Any) -> None:
    request = expanded(folder, seeded(1, 2))
    for _ in range(2):
        assert isinstance(rollouts.attempt(served, request), Exception)


def test_another_image_under_the_same_ids(folder: Path, served: Any, patched: None) -> None:
    request = expanded(folder, seeded(1, 2))
    for seeds in ((1, 2), (1, 3), (3, 2), (2, 1)):
        changed = with_images(request, seeded(*seeds))
        assert_exact(folder, processors.process(served, changed.ids, changed.images), changed)


def test_another_image_in_the_same_file(folder: Path, served: Any, patched: None, tmp_path: Path) -> None:
    request = expanded(folder, seeded(1, 2))
    files = [tmp_path / "first.png", tmp_path / "second.png"]
    for seeds in ((1, 2), (3, 2)):
        changed = with_images(request, seeded(*seeds))
        for image, file in zip(changed.images, files, strict=True):
            image.save(file)
        assert_exact(folder, processors.process(served, changed.ids, [str(file) for file in files]), changed)


def test_an_image_of_another_size_under_the_same_ids_is_refused(
    folder: Path, served: Any, patched: None
) -> None:
    request = expanded(folder, seeded(1, 2))
    for _ in range(2):
        with pytest.raises(
            RefusedRequest, match=r"image 1 of 2: input_ids hold \d+ .* image processor makes"
        ):
            processors.process(served, request.ids, [request.images[0], picture(448, 448)])
        assert_exact(folder, processors.process(served, request.ids, request.images), request)


def test_rollouts_that_share_images(folder: Path, served: Any, patched: None) -> None:
    """Turn by turn and at the same time, with histories that differ and images that do not."""
    images = seeded(1, 2, 3, 4)
    for count in (2, 3, 4):
        plain = rollouts.expanded(folder, images[:count])
        pair = [rollouts.drifted(folder, plain, region) for region in ("before", "between")]

        async def both(pair: list[Request] = pair) -> list[Processed]:
            work = (processors.process_async(served, one.ids, one.images) for one in pair)
            return list(await asyncio.gather(*work))

        for request, result in zip(pair, processors.run(both()), strict=True):
            assert_exact(folder, result, request)
