"""Encoder disaggregation builds its prompt in ``get_mm_data``, from ids and embeddings made elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab import processors, reference
from tests.sglang import rollouts
from tests.sglang.rollouts import Request, picture

WAYS = ("default",)
IMAGES = [picture(448, 224), picture(224, 672)]

pytestmark = pytest.mark.skipif(
    not hasattr(processors.processor_class(), "get_mm_data"),
    reason="this release has no encoder disaggregation",
)

REQUESTS: dict[str, Callable[[Path], Request]] = {
    "short": lambda f: rollouts.short(f, IMAGES),
    "expanded": lambda f: rollouts.expanded(f, IMAGES),
    "drifted": lambda f: rollouts.drifted(f, rollouts.expanded(f, IMAGES), "between"),
    "mixed": lambda f: rollouts.mixed(f, IMAGES, {1}),
}


def knows_images_only() -> bool:
    """To 0.5.9 the method takes the images' embeddings and grids, and nothing of other media."""
    return "img_grid_thw" in inspect.signature(processors.processor_class().get_mm_data).parameters


def build(folder: Path, processor: Any, ids: list[int]) -> tuple[Any, torch.Tensor]:
    """(result, the embeddings [tokens, 8] of all images)."""
    from sglang.srt.managers.schedule_batch import Modality

    grids = rollouts.image_grids(folder, IMAGES)
    tokens = int(grids.prod(dim=1).sum()) // 4
    embeddings = torch.arange(tokens * 8, dtype=torch.float32).reshape(tokens, 8)
    sent = embeddings if knows_images_only() else {Modality.IMAGE: embeddings}
    made = processor.get_mm_data(ids, sent, img_grid_thw=grids)
    return made, embeddings


def part(made: Any, name: str) -> Any:
    return made[name] if isinstance(made, dict) else getattr(made, name)


@pytest.mark.parametrize("name", REQUESTS)
def test_exact(name: str, folder: Path, processor: Any, patched: None) -> None:
    request = REQUESTS[name](folder)
    sent = list(request.ids)
    made, embeddings = build(folder, processor, sent)
    grids = rollouts.image_grids(folder, IMAGES)
    positions, delta = reference.positions(folder, request.expected_ids, grids)
    assert sent == request.ids
    assert part(made, "input_ids") == request.expected_ids
    assert [pair for item in part(made, "mm_items") for pair in item.offsets] == rollouts.spans(
        folder, request.expected_ids
    )
    kept = [item.precomputed_embeddings for item in part(made, "mm_items")]
    assert torch.equal(torch.cat(kept), embeddings)
    assert torch.equal(part(made, "mrope_positions"), positions)
    assert int(part(made, "mrope_position_delta")) == delta


def test_stock_fails_on_expanded_ids(folder: Path, processor: Any) -> None:
    request = REQUESTS["expanded"](folder)
    with pytest.raises((AssertionError, IndexError)):
        build(folder, processor, request.ids)


def test_refused(folder: Path, processor: Any, patched: None) -> None:
    ids = REQUESTS["expanded"](folder).ids
    first = rollouts.spans(folder, ids)[0][0]
    with pytest.raises(ValueError, match="image 0 of 2"):
        build(folder, processor, ids[:first] + ids[first + 1 :])
    with pytest.raises(ValueError, match=r"1 image span.*2 image"):
        build(folder, processor, ids[rollouts.spans(folder, ids)[0][1] + 2 :])
    if not knows_images_only():
        with pytest.raises(ValueError, match="video data with input_ids"):
            processor.get_mm_data(ids, {}, img_grid_thw=None, video_grid_thw=torch.tensor([[2, 4, 4]]))


def test_text_prompts_are_stock(folder: Path, processor: Any, request: pytest.FixtureRequest) -> None:
    text = rollouts.conversation(2)
    stock, _ = build(folder, processor, text)  # type: ignore[arg-type]
    request.getfixturevalue("patched")
    patched, _ = build(folder, processor, text)  # type: ignore[arg-type]
    assert part(patched, "input_ids") == part(stock, "input_ids")
    assert torch.equal(part(patched, "mrope_positions"), part(stock, "mrope_positions"))
