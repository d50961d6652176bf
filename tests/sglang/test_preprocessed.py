"""Images that the caller preprocessed: SGLang's ``processor_output`` and ``precomputed_embedding`` items."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import deepeyes_patch
from deepeyes_patch.errors import RefusedRequest
from tests.lab import processors, reference
from tests.sglang import rollouts
from tests.sglang.records import counts
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
    with pytest.raises(RefusedRequest, match="image 0 of 2: input_ids hold 1 image placeholders"):
        processors.process(processor, request.ids, [make(folder, IMAGES)])


def test_without_grids_refused(folder: Path, processor: Any, make: Any, patched: None) -> None:
    item = make(folder, IMAGES)
    del item["image_grid_thw"]
    with pytest.raises(RefusedRequest, match="holds no image_grid_thw"):
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
    with pytest.raises(RefusedRequest, match="image_grid_thw must be"):
        processors.process(processor, drifted(folder).ids, [item])


def test_rows_that_do_not_fit_the_grids(folder: Path, processor: Any, make: Any, patched: None) -> None:
    item = make(folder, IMAGES)
    name = "feature" if "feature" in item else "pixel_values"
    item[name] = item[name][:20]
    with pytest.raises(RefusedRequest, match=rf"holds {name} of shape \[20, .*demands"):
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
        assert isinstance(outcome, RefusedRequest)
        assert "M-RoPE positions" in str(outcome)
    else:
        grids = rollouts.image_grids(folder, IMAGES)
        assert_exact(folder, outcome, request, grids=grids)


def test_beside_raw_images(folder: Path, processor: Any, make: Any, patched: None) -> None:
    request = drifted(folder)
    for images in ([make(folder, IMAGES[:1]), IMAGES[1]], [IMAGES[0], make(folder, IMAGES[1:])]):
        if make is processor_output:
            assert_exact(folder, processors.process(processor, list(request.ids), images), request)
        else:
            with pytest.raises(RefusedRequest, match=r"1 item\(s\) with embeddings beside 1 raw"):
                processors.process(processor, list(request.ids), images)


def test_counts_that_differ_refused(folder: Path, processor: Any, make: Any, patched: None) -> None:
    with pytest.raises(RefusedRequest, match=r"2 image span.*1 image"):
        processors.process(processor, drifted(folder).ids, [make(folder, IMAGES[:1])])
    with pytest.raises(RefusedRequest, match="image 0 of 2"):
        processors.process(processor, drifted(folder).ids, [make(folder, IMAGES[::-1])])


# --- items that contradict themselves or that SGLang would stumble over ---------------------------------


def refusal_of(folder: Path, processor: Any, item: dict[str, Any], ids: list[int] | None = None) -> str:
    """The message of the one refusal, which has to be counted as one about media."""
    before = counts()
    with pytest.raises(RefusedRequest) as caught:
        processors.process(processor, ids or drifted(folder).ids, [item])
    assert caught.value.reason == "media"
    name = "refused:media"
    assert counts() == {**before, name: before.get(name, 0) + 1}
    good = rollouts.expanded(folder, IMAGES)
    assert_exact(folder, processors.process(processor, list(good.ids), good.images), good)
    return str(caught.value)


# (1, 3, 4) was HTTP 400 and not counted; (1, 1, 4) and an infinite side were HTTP 500. What else is no
# grid, no feature and no offset is in tests/unit; it is decided before SGLang runs.
GRIDS: dict[str, Any] = {
    "three patches high": [[1, 3, 4]],
    "one patch high": [[1, 1, 4]],
    "no height": [[1, 0, 4]],
    "infinite": [[1, math.inf, 4]],
    "huge": [[1, 2**40, 4]],
}
ONE_KIND = pytest.mark.parametrize("kind", ["qwen3_vl"])


@ONE_KIND
@pytest.mark.parametrize("name", GRIDS)
def test_grids_that_no_image_has(name: str, folder: Path, processor: Any, make: Any, patched: None) -> None:
    """With as many rows of features, and as many placeholders, as they demand, if that can be."""
    item = {**make(folder, IMAGES), "image_grid_thw": GRIDS[name]}
    features, tokens, count = "feature" if "feature" in item else "pixel_values", rollouts.vision(folder), 1
    product = math.prod(GRIDS[name][0])
    if 0 < product < 100:
        count = int(product) // 4
        item[features] = item[features][: count if features == "feature" else int(product)]
    message = refusal_of(folder, processor, item, [tokens.start, *[tokens.image] * count, tokens.end])
    assert re.search(r"image_grid_thw must be|must be multiples of spatial_merge_size 2|demands", message)


FEATURES: dict[str, tuple[Any, str]] = {
    "no features": (..., r"holds no (pixel_values or precomputed_embeddings|feature); its keys"),
    "a list": ([[0.0] * 8] * 16, r"of type list, and it must be a tensor or an array"),
}


@ONE_KIND
@pytest.mark.parametrize("name", FEATURES)
def test_features_that_are_none(name: str, folder: Path, processor: Any, make: Any, patched: None) -> None:
    value, message = FEATURES[name]
    item = make(folder, IMAGES)
    key = "feature" if "feature" in item else "pixel_values"
    item[key] = value
    if value is ...:
        del item[key]
    assert re.search(message, refusal_of(folder, processor, item))


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "offsets of no image": ({"offsets": []}, r"holds offsets of shape \[0\]; leave them out"),
    # 0.5.23 fills memory with them until it is killed.
    "huge offsets": ({"offsets": [(0, 10**9), (10**9, 10**10)]}, r"offsets that are not those of the"),
    "a fractional hash": ({"hash": 1.5}, r"holds hash of type float"),
    "no modality": ({"modality": "nonsense"}, r"holds modality nonsense"),
    "seconds": ({"second_per_grid_ts": [1.0]}, r"holds second_per_grid_ts; leave them out"),
}


@ONE_KIND
@pytest.mark.parametrize("name", ODD)
def test_odd_metadata(name: str, folder: Path, processor: Any, make: Any, patched: None) -> None:
    changes, message = ODD[name]
    assert re.search(message, refusal_of(folder, processor, {**make(folder, IMAGES), **changes}))


@ONE_KIND
@pytest.mark.parametrize("form", ["jpeg", None, {"a": 1}])
def test_formats_that_sglang_does_not_know(
    form: Any, folder: Path, processor: Any, make: Any, patched: None
) -> None:
    """To 0.5.4 SGLang asks for none."""
    item = {**make(folder, IMAGES), "format": form}
    if takes_any_dict():
        request = drifted(folder)
        assert_exact(folder, processors.process(processor, list(request.ids), [item]), request)
    else:
        assert "and SGLang knows processor_output" in refusal_of(folder, processor, item)


@ONE_KIND
@pytest.mark.skipif(takes_any_dict(), reason="this release knows no formats")
@pytest.mark.parametrize("spelling", ["name", "member"])
def test_spellings_of_a_format(spelling: str, folder: Path, processor: Any, make: Any, patched: None) -> None:
    from sglang.srt.managers.schedule_batch import MultimodalInputFormat

    item = make(folder, IMAGES)
    name = item["format"].upper()
    item["format"] = name if spelling == "name" else MultimodalInputFormat[name]
    request = drifted(folder)
    assert_exact(folder, processors.process(processor, list(request.ids), [item]), request)


@ONE_KIND
def test_the_features_of_the_other_format(folder: Path, processor: Any, make: Any, patched: None) -> None:
    item = make(folder, IMAGES)
    if takes_any_dict():
        item["feature"] = torch.zeros(len(item.pop("pixel_values")) // 4, 8)
    else:
        other = {"processor_output", "precomputed_embedding"} - {item["format"]}
        item["format"] = other.pop()
    assert re.search(
        r"holds no (pixel_values or precomputed_embeddings|feature); its keys",
        refusal_of(folder, processor, item),
    )


@ONE_KIND
def test_metadata_that_fits_is_served(folder: Path, processor: Any, make: Any, patched: None) -> None:
    request = drifted(folder)
    right = {"offsets": rollouts.spans(folder, request.ids), "hash": 5, "modality": "image"}
    for changes in ({name: value} for name, value in right.items()):
        item = {**make(folder, IMAGES), **changes}
        assert_exact(folder, processors.process(processor, list(request.ids), [item]), request)


@ONE_KIND
def test_a_fault_of_sglangs_own_is_no_fault_of_the_clients(
    folder: Path, processor: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was HTTP 400, "an image could not be loaded: 'NoneType' object has no attribute ..."."""
    cls = type(processor)
    base = next(cls for cls in cls.__mro__ if "collect_mm_items_from_processor_output" in vars(cls))

    def broken(mm_token_id: int, input_ids: Any = None, **kwargs: Any) -> Any:
        raise AttributeError("'NoneType' object has no attribute 'shape'")

    broken.__module__ = base.__module__
    if make is processor_output:
        monkeypatch.setattr(base, "collect_mm_items_from_processor_output", broken)
    else:
        monkeypatch.setattr(base, "get_mm_items_offset", staticmethod(broken))
    deepeyes_patch.install(["processor"])
    try:
        with pytest.raises(AttributeError, match="object has no attribute 'shape'"):
            processors.process(processor, drifted(folder).ids, [make(folder, IMAGES)])
        assert counts() == {}
    finally:
        deepeyes_patch.uninstall()
