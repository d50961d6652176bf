"""The servers that the tests of several folders share. The ``conftest.py`` of each registers this module.

A fixture that two conftests import would be two fixtures, with servers of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.lab import altered, flags, installed, models, server
from tests.lab.server import Server

# SGLang may cut ids that are too long, which no request with images survives unnoticed.
ARGS = ["--allow-auto-truncate"]


@pytest.fixture(scope="session")
def release() -> str:
    return flags.installed().version


@pytest.fixture(scope="session")
def folder() -> Path:
    """The tiny Qwen3-VL."""
    return models.ensure("qwen3_vl")


# The servers of all modules that compare stock with patched, each started when it is first asked for. They
# differ in the switch alone.


@pytest.fixture(scope="session")
def stock(folder: Path) -> Iterator[Server]:
    with server.serve(folder, env=shapes.STOCK, args=ARGS) as running:
        yield running


@pytest.fixture(scope="session")
def patched(folder: Path) -> Iterator[Server]:
    with server.serve(folder, env=shapes.PATCHED, args=ARGS) as running:
        yield running


@pytest.fixture(scope="session")
def processor_alone(folder: Path) -> Iterator[Server]:
    """Its rope is SGLang's own."""
    with server.serve(folder, env={**shapes.STOCK, "DEEPEYES_PATCH": "processor"}, args=ARGS) as running:
        yield running


@pytest.fixture(scope="session")
def launched(folder: Path) -> Iterator[Server]:
    """Started by ``deepeyes-patch run``, which sets the switch; with the repair of videos, and metrics."""
    run = [Path(sys.executable).with_name("deepeyes-patch"), "run", "--only", "processor,video", "--"]
    with server.serve(folder, env=shapes.STOCK, args=["--enable-metrics"], launcher=run) as running:
        yield running


LOGITS = "srt/layers/logits_processor.py"
PINNED = "pin_memory=True"


@pytest.fixture(scope="session")
def on_a_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a server that can be asked for log-probs of a prompt on a CPU.

    Some releases pin memory there, which needs CUDA. Their servers are of a copy that does not.
    """
    (source,) = installed.sources("sglang.srt.layers.logits_processor")
    if PINNED not in source.read_text():
        return {}
    folder = tmp_path_factory.mktemp("unpinned")
    copy = altered.copy(folder, {LOGITS: altered.replacing(PINNED, "pin_memory=False")})
    return {"PYTHONPATH": str(copy)}
