"""SGLang's plugin entry point as the only road to the repair, and the tiny Qwen2.5-VL.

``pip install --target`` puts a package where Python reads no ``.pth`` files. One server answers both
questions: is the repair live in it, and is this model served exactly.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import interpreters, shapes
from tests.e2e.shapes import BAD, SHAPES
from tests.lab import models, server
from tests.lab.server import Server

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sglang.srt.plugins") is None, reason="this release loads no plugins"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return models.ensure("qwen2_5_vl")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str | None]]:
    """An interpreter without our package, and the variables that put a ``--target`` folder on its path."""
    root = tmp_path_factory.mktemp("plugin")
    python = interpreters.build(root / "venv", interpreters.layers(), with_our_package=False)
    target = root / "target"
    target.mkdir()
    for entry in interpreters.ours():
        (target / entry.name).symlink_to(entry)
    return python, {**shapes.PATCHED, "PYTHONPATH": str(target)}


@pytest.fixture(scope="module")
def running(folder: Path, environment: tuple[Path, dict[str, str | None]]) -> Iterator[Server]:
    python, variables = environment
    with server.serve(folder, env=variables, python=python) as started:
        yield started


def test_the_pth_is_not_read_here(environment: tuple[Path, dict[str, str | None]]) -> None:
    python, variables = environment
    merged = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    question = (
        "import sys; from importlib.util import find_spec; from importlib.metadata import entry_points;"
        "print('deepeyes_patch' in sys.modules, find_spec('deepeyes_patch') is not None,"
        " [e.value for e in entry_points(group='sglang.srt.plugins')])"
    )
    done = subprocess.run(
        [str(python), "-c", question],
        env=merged,
        cwd=python.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "False True ['deepeyes_patch.bootstrap:plugin']"


def test_the_plugin_alone_brings_the_repair(running: Server, release: str) -> None:
    shapes.assert_announced(running, release)


@pytest.mark.parametrize("name", ["text", "short, drifted", "expanded", "expanded, drifted between"])
def test_qwen2_5_vl_is_exact(name: str, folder: Path, running: Server) -> None:
    shapes.assert_served(folder, running, SHAPES[name](folder))


def test_qwen2_5_vl_refuses(folder: Path, running: Server) -> None:
    """Stock 0.5.23 never answers such a request for this model."""
    shapes.assert_refused(running, BAD["an image missing"](folder))
    shapes.assert_served(folder, running, SHAPES["expanded"](folder))
