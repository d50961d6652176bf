"""Pictures of one colour with as many patches: the same hash in many stock releases, whatever their sides.

tests/e2e/test_prefix_cache.py has a server, which knows pictures by this hash.
"""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

from tests.lab import models, processors
from tests.sglang import rollouts

SIDES = [(448, 224), (224, 448)]


@pytest.fixture
def kind() -> models.Kind:
    return "qwen3_vl"


def items(kind: models.Kind, *sides: tuple[int, int], colour: str = "white") -> list[Any]:
    """The item of each picture, hashed, as a text prompt makes it: stock serves it in all releases."""
    processor = processors.build(kind)
    found = []
    for size in sides:
        made = processors.process(processor, rollouts.conversation(1), [Image.new("RGB", size, colour)])
        (item,) = made.mm_items
        item.set_pad_value()
        found.append(item)
    return found


def test_stock_takes_them_for_each_other_if_it_hashes_patches_alone(kind: models.Kind) -> None:
    """It does not where the processor has hashed the images themselves, before it made patches of them."""
    one, other = items(kind, *SIDES)
    made = processors.process(
        processors.build(kind), rollouts.conversation(1), [Image.new("RGB", SIDES[0], "white")]
    )
    hashes_images = made.mm_items[0].hash is not None
    assert (one.hash != other.hash) == hashes_images


def test_the_grid_counts(kind: models.Kind, patched: None) -> None:
    one, other = items(kind, *SIDES)
    assert one.hash != other.hash
    assert one.pad_value != other.pad_value


def test_the_same_picture_has_the_same_hash(kind: models.Kind, patched: None) -> None:
    one, again = items(kind, SIDES[0], SIDES[0])
    assert (one.hash, one.pad_value) == (again.hash, again.pad_value)
    (red,) = items(kind, SIDES[0], colour="red")
    assert red.hash != one.hash


def test_a_hash_that_is_known_stays(kind: models.Kind, patched: None) -> None:
    (item,) = items(kind, SIDES[0])
    known = item.hash, item.pad_value
    item.pad_value = None  # as when it reaches the scheduler
    item.set_pad_value()
    assert (item.hash, item.pad_value) == known
