"""Servers of one release, stock and patched, and what records the traffic between a framework and them.

Run inside a release's environment: ``.lab/0.5.23/bin/python -m pytest tests/frameworks``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

from tests.frameworks import wire
from tests.frameworks.wire import Wire
from tests.lab.server import Server

# As in tests/e2e/conftest.py.
signal.signal(signal.SIGTERM, signal.default_int_handler)
torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.e2e.fixtures")


@pytest.fixture
def to_patched(patched: Server) -> Iterator[Wire]:
    with wire.between(patched.url) as recording:
        yield recording


@pytest.fixture
def to_stock(stock: Server) -> Iterator[Wire]:
    with wire.between(stock.url) as recording:
        yield recording
