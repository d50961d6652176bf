"""Servers of one release, stock and patched, and what records the traffic between a framework and them.

Run inside a release's environment: ``.lab/0.5.23/bin/python -m pytest tests/frameworks``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

from tests.e2e import scoring, shapes
from tests.frameworks import layers, wire
from tests.frameworks.driving import Child
from tests.frameworks.wire import Wire
from tests.lab.server import Server

# As in tests/e2e/conftest.py.
signal.signal(signal.SIGTERM, signal.default_int_handler)
torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.e2e.fixtures")


Variables = dict[str, str]

# Frameworks may ask for the log-probs of prompts. Where a CPU cannot compute them, `on_a_cpu` says so.


@pytest.fixture(scope="session")
def scoring_stock(on_a_cpu: Variables, request: pytest.FixtureRequest) -> Iterator[Server]:
    yield from scoring.serve("stock", shapes.STOCK, on_a_cpu, request)


@pytest.fixture(scope="session")
def scoring_patched(on_a_cpu: Variables, request: pytest.FixtureRequest) -> Iterator[Server]:
    yield from scoring.serve("patched", shapes.PATCHED, on_a_cpu, request)


@pytest.fixture
def to_stock(scoring_stock: Server) -> Iterator[Wire]:
    with wire.between(scoring_stock.url) as recording:
        yield recording


@pytest.fixture
def to_patched(scoring_patched: Server) -> Iterator[Wire]:
    with wire.between(scoring_patched.url) as recording:
        yield recording


@pytest.fixture(scope="module")
def child(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Child:
    """Of the framework that the test module names ``FRAMEWORK``."""
    framework = request.module.FRAMEWORK
    folder = tmp_path_factory.mktemp(framework)
    return Child(framework, folder, layers.python(framework, folder / "venv"))
