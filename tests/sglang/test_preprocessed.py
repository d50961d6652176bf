"""Images that the caller preprocessed: SGLang's ``processor_output`` and ``precomputed_embedding`` items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab import processors, reference
from tests.sglang import rollouts
from tests.sglang.rollouts import Request, assert_exact, picture

IMAGES = [picture(448, 224), picture(224, 672)]


def processor_output(folder: Path, images: list[Any]) -> dict[str, Any]:
    made = reference.processor(folder).image_processor(images=images, return_tensors="pt")
    return {
        "format": "processor_output",
        "pixel_values": made["pixel_values"],
        "image_grid_thw": made["image_grid_thw"],
    }


def precomputed_embedding(folder: Path, images: list[Any]) -> dict[str, Any]:
    grids = rollouts.image_grids(folder, images)
    tokens = int(grids.prod(dim=1).sum()) // 4
    feature = torch.arange(tokens * 8, dtype=torch.float32).reshape(tokens, 8)
    return {"format": "precomputed_embedding", "feature": feature, "image_grid_thw": grids}


WAYS = ("default", "pool, retokenize")

MAKERS = {"processor_output": processor_output, "precomputed_embedding": precomputed_embedding}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Any:
    if request.param == "precomputed_embedding" and takes_any_dict():
        pytest.skip("this release knows no formats: a dict holds what the HF processor made")
    return MAKERS[request.param]


def takes_any_dict() -> bool:
    from sglang.srt.managers import schedule_batch

    return not hasattr(schedule_batch, "MultimodalInputFormat")


def drifted(folder: Path) -> Request:
    """Two images of unlike grids, non-canonical text between them."""
    return rollouts.drifted(folder, rollouts.expanded(folder, IMAGES), "between")


def test_ids_and_positions_are_the_callers(folder: Path, processor: Any, make: Any, patched: None) -> None:
    request = drifted(folder)
    result = processors.process(processor, list(request.ids), [make(folder, IMAGES)])
    assert_exact(folder, result, request)
    rows = sum(len(next(value for value in _features(item))) for item in result.mm_items)
    assert rows == len(next(v for v in make(folder, IMAGES).values() if isinstance(v, torch.Tensor)))


def _features(item: Any) -> list[torch.Tensor]:
    return [value for value in (item.feature, item.precomputed_embeddings) if value is not None]


def test_stock_gives_other_ids_or_positions(folder: Path, processor: Any) -> None:
    request = drifted(folder)
    try:
        stock = processors.process(processor, list(request.ids), [processor_output(folder, IMAGES)])
    except Exception:
        return
    positions, _ = reference.positions(
        folder, request.expected_ids, rollouts.image_grids(folder, request.images)
    )
    right = stock.input_ids == request.expected_ids and torch.equal(stock.mrope_positions, positions)
    if hasattr(processors.processor_class(), "_get_grid_from_output_or_items"):
        assert right, "0.5.13 and later keep the ids of preprocessed items; if not, say so in the docs"
    else:
        assert not right


def test_one_placeholder_is_not_short_for_many(
    folder: Path, processor: Any, make: Any, patched: None
) -> None:
    """By SGLang's contract these come expanded; one placeholder would meet many feature rows."""
    request = rollouts.short(folder, IMAGES)
    with pytest.raises(ValueError, match="image 0 of 2: input_ids hold 1 image placeholders"):
        processors.process(processor, request.ids, [make(folder, IMAGES)])


def test_without_grids_refused(folder: Path, processor: Any, make: Any, patched: None) -> None:
    item = make(folder, IMAGES)
    del item["image_grid_thw"]
    with pytest.raises(ValueError, match="holds no image_grid_thw"):
        processors.process(processor, drifted(folder).ids, [item])


@pytest.mark.parametrize(
    "grid",
    [
        pytest.param(lambda rows: rows.tolist(), id="lists"),
        pytest.param(lambda rows: list(rows), id="list of tensors"),
        pytest.param(lambda rows: rows.int(), id="int32"),
    ],
)
def test_spellings_of_the_grids(grid: Any, folder: Path, processor: Any, make: Any, patched: None) -> None:
    request = drifted(folder)
    item = make(folder, IMAGES)
    item["image_grid_thw"] = grid(item["image_grid_thw"])
    before = dict(item)
    assert_exact(folder, processors.process(processor, list(request.ids), [item]), request)
    assert item == before or all(item[key] is before[key] for key in before), "the caller's item was changed"


@pytest.mark.parametrize(
    "grid", [5, "abc", [14, 28], [1, 14, 28, 1], [[1, 14.7, 28]], [[1, -14, -28]], {"a": 1}, torch.tensor(5)]
)
def test_grids_that_are_none(grid: Any, folder: Path, processor: Any, make: Any, patched: None) -> None:
    item = {**make(folder, IMAGES), "image_grid_thw": grid}
    with pytest.raises(ValueError, match="image_grid_thw must be"):
        processors.process(processor, drifted(folder).ids, [item])


def test_rows_that_do_not_fit_the_grids(folder: Path, processor: Any, make: Any, patched: None) -> None:
    item = make(folder, IMAGES)
    name = "feature" if "feature" in item else "pixel_values"
    item[name] = item[name][:20]
    with pytest.raises(ValueError, match=rf"holds {name} of shape \[20, .*demands"):
        processors.process(processor, drifted(folder).ids, [item])


def test_positions_of_the_callers_own(folder: Path, processor: Any, make: Any, patched: None) -> None:
    """0.5.23 would take them; they must be what the ids demand, or the request is refused."""
    request = drifted(folder)
    right = processors.process(processor, list(request.ids), [make(folder, IMAGES)])
    wrong = {
        **make(folder, IMAGES),
        "mrope_positions": right.mrope_positions + 1000,
        "mrope_position_delta": torch.tensor([[77]]),
    }
    outcome = rollouts.attempt(processor, Request(request.ids, [wrong], request.expected_ids))
    if isinstance(outcome, Exception):
        assert isinstance(outcome, ValueError)
        assert "M-RoPE positions" in str(outcome)
    else:
        grids = rollouts.image_grids(folder, IMAGES)
        assert_exact(folder, outcome, request, grids=grids)


def test_mixed_with_raw_images_refused(folder: Path, processor: Any, make: Any, patched: None) -> None:
    images = [make(folder, IMAGES[:1]), IMAGES[1]]
    with pytest.raises(ValueError, match=r"mixes 1 preprocessed item.*1 raw"):
        processors.process(processor, drifted(folder).ids, images)


def test_counts_that_differ_refused(folder: Path, processor: Any, make: Any, patched: None) -> None:
    with pytest.raises(ValueError, match=r"2 image span.*1 image"):
        processors.process(processor, drifted(folder).ids, [make(folder, IMAGES[:1])])
    with pytest.raises(ValueError, match="image 0 of 2"):
        processors.process(processor, drifted(folder).ids, [make(folder, IMAGES[::-1])])
