"""The lab's own definition of positions, a stand-in for ``transformers`` 5.3.0, beside sound versions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.lab import reference
from tests.sglang import films, rollouts
from tests.sglang.films import SCENES


@pytest.mark.parametrize("name", ["one video", "videos among images"])
def test_the_definition_is_that_of_transformers(name: str, folder: Path) -> None:
    request = films.of_transformers(folder, SCENES[name])
    more = {}
    if folder.name.startswith("qwen2_5"):
        assert all(seconds == int(seconds) for seconds in request.seconds)  # others are cut by some versions
        more["second_per_grid_ts"] = torch.tensor(request.seconds)
    ids = [*request.ids, 0]
    expected = reference.positions(folder, ids, request.grids, request.video_grids, **more)
    found = reference.defined_positions(
        folder, ids, request.grids, request.video_grids, more.get("second_per_grid_ts")
    )
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]


def test_the_definition_of_images_is_that_of_transformers(folder: Path) -> None:
    request = rollouts.expanded(folder, [rollouts.picture(*size) for size in rollouts.SIZES])
    grids = rollouts.image_grids(folder, request.images)
    found = reference.defined_positions(folder, request.ids, grids)
    expected = reference.positions(folder, request.ids, grids)
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]
