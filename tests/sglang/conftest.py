"""The real processor classes, stock and patched, in one process.

These tests run in the environment of one SGLang release (``make test`` runs them in each); without
SGLang they fail, they are not skipped.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import deepeyes_patch
from tests.lab import flags, models, processors, qwen3_5

os.environ.update(flags.ENVIRONMENT)
# The stock forward of 0.5.3 is compiled, which takes minutes on a CPU and changes no result here.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
if qwen3_5.home():
    # Read when triton is imported: its kernels then run on CPU tensors.
    os.environ["TRITON_INTERPRET"] = "1"


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


def has_pool() -> bool:
    from sglang.srt.server_args import ServerArgs

    return "mm_processor_worker_num" in inspect.signature(ServerArgs).parameters


def avoids_retokenizing() -> bool:
    from sglang.srt import environ

    return hasattr(environ.envs, "SGLANG_MM_AVOID_RETOKENIZE")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``processor`` in each of the ways in which this release's processor can work.

    ``retokenize``: with SGLANG_MM_AVOID_RETOKENIZE=0 (0.5.13 and later), whose default would hide a
    repair that does nothing. ``pool``: worker threads with processor clones (0.5.17 and later). A test
    module for which not all of them matter names those that do in ``WAYS``.
    """
    if "processor" in metafunc.fixturenames:
        ways = ["default"]
        ways += ["retokenize"] if avoids_retokenizing() else []
        ways += ["pool", "pool, retokenize"] if has_pool() else []
        chosen = getattr(metafunc.module, "WAYS", ways)
        metafunc.parametrize("processor", [way for way in ways if way in chosen], indirect=True)


@pytest.fixture
def processor(request: pytest.FixtureRequest, kind: models.Kind, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The release's own processor, in one of the ways of `pytest_generate_tests`."""
    if "retokenize" in request.param:
        monkeypatch.setenv("SGLANG_MM_AVOID_RETOKENIZE", "0")
    return _built(kind, workers=2 if "pool" in request.param else 1)


@cache
def _built(kind: models.Kind, workers: int) -> Any:
    return processors.build(kind, **({"mm_processor_worker_num": workers} if has_pool() else {}))
