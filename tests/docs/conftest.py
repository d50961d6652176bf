"""An environment as a user would make it, with a copy of this checkout beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.install.conftest import copy_sources
from tests.interpreters import clean_environ

SECONDS = 300  # bound on any one block

Shell = Callable[[str], str]


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Runs a block in one fresh environment with pip, whose index is a folder; returns what it printed."""
    folder = tmp_path_factory.mktemp("user")
    index = folder / "index"
    download = [
        sys.executable,
        "-m",
        "pip",
        "-q",
        "download",
        "-d",
        index,
        "wrapt>=1.16",
        "hatchling>=1.27",  # which builds the checkout
    ]
    subprocess.run(download, env=clean_environ(), check=True, timeout=SECONDS, capture_output=True)
    copy_sources(folder / "deepeyes-patch")
    venv = [sys.executable, "-m", "venv", folder / "env"]
    subprocess.run(venv, env=clean_environ(), check=True, timeout=SECONDS)
    environ = clean_environ(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index), PIP_DISABLE_PIP_VERSION_CHECK="1")
    environ["PATH"] = f"{folder / 'env' / 'bin'}:{environ['PATH']}"

    def run(block: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            env=environ,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def site_packages(shell: Shell) -> Path:
    return Path(shell("python -c \"import sysconfig; print(sysconfig.get_path('purelib'))\"").strip())
