"""Tensor and data parallelism: every worker has the positions and the features of the caller's ids.

And its rope, where that is ours: stock 0.5.3 would be off by more than what passes here (test_rope.py). The
tensor-parallel server also prefills every image in pieces.
"""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from tests.e2e import shapes
from tests.e2e.shapes import BAD, SHAPES
from tests.lab import flags, server
from tests.lab.server import Server

# Two workers on two cores take minutes to start, so not every release tries them.
TRIED = {"tensor": ("0.5.3", "0.5.12.post1", "0.5.23"), "data": ("0.5.12.post1", "0.5.23")}

# Fewer tokens than the smallest of the images has: every image is prefilled in pieces.
CHUNK = 64


def tried(kind: str) -> pytest.MarkDecorator:
    version = flags.installed().version
    return pytest.mark.skipif(
        version not in TRIED[kind], reason=f"tried on {' and '.join(TRIED[kind])} alone"
    )


def assert_exact_and_refused(folder: Path, running: Server, release: str) -> None:
    # Twice each: with two replicas, requests take turns.
    for name in ("expanded", "expanded", "expanded, drifted between", "expanded, drifted between"):
        shapes.assert_served(folder, running, SHAPES[name](folder))
    shapes.assert_refused(running, BAD["a pad missing"](folder))
    shapes.assert_refused(running, BAD["pads and no image at all"](folder))
    shapes.assert_served(folder, running, SHAPES["short, drifted"](folder))
    shapes.assert_served(folder, running, SHAPES["text"](folder))
    shapes.assert_announced(running, release)


@tried("tensor")
def test_two_ranks(folder: Path, release: str) -> None:
    args, env = server.tensor_parallel(2)
    args += ["--chunked-prefill-size", str(CHUNK)]
    with server.serve(folder, env={**shapes.PATCHED, **env}, args=args) as running:
        assert_exact_and_refused(folder, running, release)
        prefilled = [int(tokens) for tokens in re.findall(r"#new-token: (\d+)", running.log_text())]
    assert max(prefilled) == CHUNK


@tried("data")
def test_two_replicas_and_one_that_is_killed(folder: Path, release: str) -> None:
    """The other one is right. It has the next turn; after that, SGLang waits for the dead one for good."""
    args, env = server.data_parallel(2)
    with server.serve(folder, env={**shapes.PATCHED, **env}, args=args) as running:
        assert_exact_and_refused(folder, running, release)
        sent = SHAPES["expanded, drifted between"](folder)
        shapes.assert_served(folder, running, sent)
        last = re.findall(r"DP(\d)[^\]]*\] Prefill batch", running.log_text())[-1]
        children = psutil.Process(running.process.pid).children(recursive=True)
        (replica,) = [child for child in children if f"scheduler_DP{last}" in " ".join(child.cmdline())]
        replica.kill()
        shapes.assert_served(folder, running, sent)
