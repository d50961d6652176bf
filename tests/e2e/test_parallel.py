"""Tensor and data parallelism: every worker has the positions and the features of the caller's ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import BAD, SHAPES
from tests.lab import flags, server
from tests.lab.server import Server

RELEASE = "0.5.12.post1"

pytestmark = pytest.mark.skipif(
    flags.installed().version != RELEASE,
    reason=f"two workers on two cores take minutes to start, so they are tried on {RELEASE} alone",
)


@pytest.fixture(scope="module", params=["tensor", "data"])
def running(request: pytest.FixtureRequest, folder: Path) -> Iterator[Server]:
    if request.param == "tensor":
        args, env = server.tensor_parallel(2)
    else:
        args, env = ["--dp", "2"], {}
    with server.serve(folder, env={**shapes.PATCHED, **env}, args=args) as started:
        yield started


def test_exact_and_refused(folder: Path, running: Server, release: str) -> None:
    # Twice each: with two replicas, requests take turns.
    for name in ("expanded", "expanded", "expanded, drifted between", "expanded, drifted between"):
        shapes.assert_served(folder, running, SHAPES[name](folder))
    shapes.assert_refused(running, BAD["a pad missing"](folder))
    shapes.assert_refused(running, BAD["pads and no image at all"](folder))
    shapes.assert_served(folder, running, SHAPES["short, drifted"](folder))
    shapes.assert_announced(running, release)
