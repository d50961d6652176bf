"""Servers of one release, stock and patched, and what records the traffic between a framework and them.

Run inside a release's environment: ``.lab/0.5.23/bin/python -m pytest tests/frameworks``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

from tests.frameworks import layers, wire
from tests.frameworks.driving import Child
from tests.frameworks.wire import Wire
from tests.lab.server import Server

# As in tests/e2e/conftest.py.
signal.signal(signal.SIGTERM, signal.default_int_handler)
torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.e2e.fixtures")


# On a CPU, a request for log-probs of the prompt ends a 0.5.12.post1 server: SGLang puts a tensor on CUDA.
CUDA_ONLY = {"0.5.12.post1": ["logprob_start_len"]}


@pytest.fixture
def to_patched(patched: Server, release: str) -> Iterator[Wire]:
    with wire.between(patched.url, CUDA_ONLY.get(release, [])) as recording:
        yield recording


@pytest.fixture
def to_stock(stock: Server, release: str) -> Iterator[Wire]:
    with wire.between(stock.url, CUDA_ONLY.get(release, [])) as recording:
        yield recording


@pytest.fixture(scope="module")
def child(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Child:
    """Of the framework that the test module names ``FRAMEWORK``."""
    framework = request.module.FRAMEWORK
    folder = tmp_path_factory.mktemp(framework)
    return Child(framework, folder, layers.python(framework, folder / "venv"))
