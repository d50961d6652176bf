"""The real processor classes, stock and patched, in one process.

These tests run in the environment of one SGLang release (``make test`` runs them in each); without
SGLang they fail, they are not skipped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import deepeyes_patch
from tests.lab import children, flags, models, qwen3_5
from tests.sglang import ways

os.environ.update(flags.ENVIRONMENT)
# The stock forward of 0.5.3 is compiled, which takes minutes on a CPU and changes no result here.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
if qwen3_5.home():
    # Read when triton is imported: its kernels then run on CPU tensors.
    os.environ["TRITON_INTERPRET"] = "1"
# Threads that wait for each other over tiny tensors cost more than they give.
torch.set_num_threads(1)


def pytest_report_header() -> str:
    import sglang

    return f"sglang {sglang.__version__}"


@pytest.fixture(params=models.KINDS)
def kind(request: pytest.FixtureRequest) -> models.Kind:
    return request.param


@pytest.fixture
def folder(kind: models.Kind) -> Path:
    return models.ensure(kind)


@pytest.fixture
def patched() -> Iterator[None]:
    """The processor repair, for one test; the same processor objects serve stock ones before and after."""
    deepeyes_patch.install(["processor"])
    try:
        yield
    finally:
        deepeyes_patch.uninstall()


@pytest.fixture(scope="session")
def in_child(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `tests.sglang.table_child` found in this release."""
    folder = tmp_path_factory.mktemp("table")
    command = [sys.executable, "-m", "tests.sglang.table_child", str(folder / "found.json")]
    children.run(command, folder / "log", seconds=300, env={"DEEPEYES_PATCH": None}, quiet=True)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``processor`` in each of the ways in which this release's processor can work.

    A test module for which not all of them matter names those that do in ``WAYS``.
    """
    if "processor" in metafunc.fixturenames:
        known = ways.ways()
        chosen = getattr(metafunc.module, "WAYS", known)
        metafunc.parametrize("processor", [way for way in known if way in chosen], indirect=True)


@pytest.fixture
def processor_class() -> type | None:
    """None: the Qwen module's own. A test module about another class overrides this."""
    return None


@pytest.fixture
def processor(
    request: pytest.FixtureRequest,
    folder: Path,
    processor_class: type | None,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """The release's own processor, in one of the ways of `pytest_generate_tests`."""
    for name, value in ways.variables(request.param).items():
        monkeypatch.setenv(name, value)
    return ways.build(folder, request.param, processor_class)
