"""Distributions of this checkout, built once, and what installing needs from the package index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import interpreters
from tests.interpreters import CHECKOUT, Interpreter, clean_environ
from tests.lab import environments

# Everything a distribution of ours is made of.
SOURCES = [
    "deepeyes_patch",
    "deepeyes_patch.pth",
    "deepeyes_patch.start",
    "docker",
    "docs",
    "examples",
    "tests",
    ".gitignore",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "README.zh-CN.md",
    "SECURITY.md",
    "hatch_build.py",
    "pyproject.toml",
]
VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14", "3.15"]
SECONDS = 300  # bound on one pip run

Install = Callable[..., None]


def pip(*arguments: str | Path, python: Path | None = None, **environ: str) -> None:
    """Run this environment's pip, for another interpreter if ``python`` is given."""
    target: list[str | Path] = ["--python", python] if python else []
    command = [
        sys.executable,
        "-m",
        "pip",
        "-q",
        "--disable-pip-version-check",
        "--no-input",
        *target,
        *arguments,
    ]
    child = subprocess.run(
        command, env=clean_environ(**environ), capture_output=True, text=True, timeout=SECONDS
    )
    assert child.returncode == 0, f"{command}\n{child.stdout}{child.stderr}"


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's sources, so that building leaves nothing behind in the checkout."""
    return copy_sources(tmp_path_factory.mktemp("checkout"))


def copy_sources(folder: Path) -> Path:
    """Copy what the distributions are made of into ``folder``; return it."""
    folder.mkdir(exist_ok=True)
    for name in SOURCES:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def build(source: Path, target: Path, *options: str, umask: int = -1, **environ: str) -> Path:
    """Build ``source`` with this environment's hatchling into ``target``; return that."""
    child = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", target, source],
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        umask=umask,
    )
    assert child.returncode == 0, f"{child.stdout}{child.stderr}"
    return target


@pytest.fixture(scope="session")
def distributions(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    return build(checkout, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def sdist(distributions: Path) -> Path:
    (path,) = distributions.glob("*.tar.gz")
    return path


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder with the scripts of ``tests/lab/locks/packaging.txt``: twine, check-wheel-contents, uv."""
    environments.ensure(["packaging"])
    return CHECKOUT / ".lab" / "packaging" / "bin"


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels that installing and building need on this Python, so that no test asks the index again."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    pip(
        "download",
        "-d",
        folder,
        "wrapt>=1.16",
        "hatchling>=1.27",
        "editables",
        "setuptools",
        "psutil",
    )
    return folder


@pytest.fixture(scope="session")
def offline(wheelhouse: Path) -> dict[str, str]:
    """pip's variables for installing out of the wheelhouse alone, in build environments too."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheelhouse)}


@pytest.fixture(scope="session")
def by_uv(tools: Path, wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """uv, used as `by_pip` is: a command of ``pip``, and for which Python. Out of the wheelhouse alone."""
    # Copied: what a test does to an installed file must not reach the cache.
    environ = {"UV_CACHE_DIR": str(tmp_path_factory.mktemp("uv")), "UV_LINK_MODE": "copy"}
    uv = Interpreter(tools / "uv", environ)

    def run(command: str, *arguments: str | Path, python: Path) -> None:
        options = ["--no-index", "--find-links", wheelhouse] if command == "install" else []
        result = uv.run("pip", command, "-q", "--python", python, *options, *arguments)
        assert result.code == 0, result

    return run


@pytest.fixture(scope="session")
def by_pip(offline: dict[str, str]) -> Install:
    """pip, used as `by_uv` is."""

    def run(command: str, *arguments: str | Path, python: Path) -> None:
        pip(command, *(["-y"] if command == "uninstall" else []), *arguments, python=python, **offline)

    return run


@pytest.fixture(scope="session")
def sglang_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the made-up ``sglang``."""
    return interpreters.write_sglang(tmp_path_factory.mktemp("made-up"))


@pytest.fixture
def fresh(tmp_path: Path, sglang_path: Path) -> Interpreter:
    """An empty environment of this Python that finds the made-up ``sglang``."""
    return on_made_up(interpreters.create(tmp_path / "env"), sglang_path)


@pytest.fixture(scope="module")
def installed(
    tmp_path_factory: pytest.TempPathFactory, wheel: Path, offline: dict[str, str], sglang_path: Path
) -> Interpreter:
    """An environment with the wheel installed, shared by tests that put back what they change."""
    created = interpreters.create(tmp_path_factory.mktemp("installed"))
    pip("install", wheel, python=created.python, **offline)
    return on_made_up(created, sglang_path)


def on_made_up(interpreter: Interpreter, sglang_path: Path, **environ: str) -> Interpreter:
    return Interpreter(interpreter.python, {"PYTHONPATH": str(sglang_path), **environ})


def files_below(folder: Path, without: Sequence[str] = ("__pycache__",)) -> set[str]:
    """Every file and folder below ``folder``, relative to it."""
    found = set()
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in without]
        found |= {str(Path(root, name).relative_to(folder)) for name in [*folders, *files]}
    return found
