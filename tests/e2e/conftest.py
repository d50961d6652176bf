"""Real servers of one release, asked through HTTP.

Run inside a release's environment (``.lab/0.5.23/bin/python -m pytest tests/e2e``); without SGLang these
tests fail, they are not skipped.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.e2e import shapes
from tests.lab import altered, flags, models, server
from tests.lab.server import Server

# A test run that is told to end (a CI's time limit) stops its servers, as on Ctrl-C.
signal.signal(signal.SIGTERM, signal.default_int_handler)
# The server has its own threads; two sets that wait for each other on few cores cost more than they give.
torch.set_num_threads(1)


def pytest_report_header() -> str:
    import sglang

    return f"sglang {sglang.__version__}"


@pytest.fixture(scope="session")
def release() -> str:
    return flags.installed().version


@pytest.fixture(scope="session")
def folder() -> Path:
    """The tiny Qwen3-VL."""
    return models.ensure("qwen3_vl")


# The servers of all modules that compare stock with patched, each started when it is first asked for. They
# differ in the switch alone.
# SGLang may cut ids that are too long, which no request with images survives unnoticed.
ARGS = ["--allow-auto-truncate"]


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


@pytest.fixture(scope="module")
def renamed_seam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the installed SGLang without a function that the processor repair needs."""
    edit = altered.replacing("_process_and_collect_mm_items", "_collect_mm_items")
    folder = tmp_path_factory.mktemp("renamed-seam")
    return altered.copy(folder, {"srt/multimodal/processors/base_processor.py": edit})
