"""What the real processor's requests are counted as, and where that is exported to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.observe import counters
from tests.lab import models, processors
from tests.sglang import rollouts, ways
from tests.sglang.records import counts

WAYS = (ways.DEFAULT,)
PICTURES = [rollouts.picture(*size) for size in rollouts.SIZES[:2]]


@pytest.fixture
def kind() -> models.Kind:
    return "qwen3_vl"


def test_requests_are_counted_by_what_became_of_them(folder: Path, processor: Any, patched: None) -> None:
    request = rollouts.expanded(folder, PICTURES)
    processors.process(processor, request.ids, request.images)
    assert counts() == {"restored": 1}
    processors.process(processor, rollouts.conversation(2), PICTURES)
    assert counts() == {"restored": 1, "passed": 1}
    first = rollouts.spans(folder, request.ids)[0][0]
    refused = {
        "length": (request.ids[:first] + request.ids[first + 1 :], PICTURES),
        "count": (request.ids, PICTURES[:1]),
        "placeholders": ([*request.ids, rollouts.vision(folder).image], PICTURES),
        "token_ids": ([*request.ids, -1], PICTURES),
        "media": (request.ids, [PICTURES[0], None]),
    }
    for ids, images in refused.values():
        with pytest.raises(RefusedRequest):
            processors.process(processor, ids, images)
    assert counts() == {"restored": 1, "passed": 1, **{f"refused:{reason}": 1 for reason in refused}}


def test_errors_of_upstreams_own_are_not_counted(folder: Path, processor: Any, patched: None) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011
        processors.process(processor, rollouts.conversation(1), ["data:image/png;base64,broken"])
    assert counts() == {}


@pytest.mark.parametrize("enabled", [False, True])
def test_metrics_are_exported_where_sglangs_are(
    enabled: bool, folder: Path, patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports: list[bool] = []
    monkeypatch.setattr(counters, "export", lambda: exports.append(True))
    processors.build(folder, enable_metrics=enabled)
    assert exports == [True] * enabled
