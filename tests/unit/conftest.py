"""The interpreters that the start-up tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests import interpreters
from tests.interpreters import Interpreter

# How long an example takes says more about the machine than about the code.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def sglang_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the made-up ``sglang``."""
    return interpreters.write_sglang(tmp_path_factory.mktemp("made-up"))


@pytest.fixture(scope="session")
def patched(tmp_path_factory: pytest.TempPathFactory, sglang_path: Path) -> Interpreter:
    """An environment with our package, its dependencies and the made-up ``sglang``; no torch."""
    created = interpreters.create(tmp_path_factory.mktemp("patched"))
    interpreters.copy_package(created)
    return Interpreter(created.python, {"PYTHONPATH": str(sglang_path)})


@pytest.fixture(scope="session")
def without_wrapt(tmp_path_factory: pytest.TempPathFactory, sglang_path: Path) -> Interpreter:
    """The same, and wrapt is missing."""
    created = interpreters.create(tmp_path_factory.mktemp("without-wrapt"))
    interpreters.copy_package(created, dependencies=())
    return Interpreter(created.python, {"PYTHONPATH": str(sglang_path)})
