"""Installations that somebody has half removed, moved or mixed: no interpreter may fail.

Nor notice, but where nothing of ours is left that could speak: there Python itself reports the line.

One environment for all; every test puts back what it took.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deepeyes_patch.startup import integrity
from tests import interpreters
from tests.install.conftest import on_made_up, pip
from tests.install.test_roads import assert_live, assert_quiet, assert_stopped
from tests.interpreters import CHECKOUT, HOOKS_LIVE, ON, Interpreter

MODULES = sorted(
    str(path.relative_to(CHECKOUT / "deepeyes_patch")) for path in (CHECKOUT / "deepeyes_patch").rglob("*.py")
)
# What people run, and no server does.
COMMAND_LINE = ("__main__.py", "cli", "verification")


@contextmanager
def away(path: Path) -> Iterator[None]:
    """Take a file or folder out of the environment for a while."""
    aside = path.with_name(f"aside-{path.name}-")
    path.rename(aside)
    try:
        yield
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        aside.rename(path)


@pytest.fixture
def damaged(installed: Interpreter) -> Interpreter:
    """The shared environment, without byte code that would outlive its source."""
    package = installed.site_packages / "deepeyes_patch"
    for folder in list(package.rglob("__pycache__")):
        shutil.rmtree(folder)
    return Interpreter(installed.python, {**installed.environ, "PYTHONDONTWRITEBYTECODE": "1"})


def assert_reported(environment: Interpreter) -> None:
    """Off, silence. On, Python reports the line that it could not run, and runs the program."""
    assert environment.run("pass").silent()
    result = environment.run("print('ran')", environ=ON)
    assert (result.code, result.out) == (0, "ran\n")
    first, *_, last = result.err.rstrip().splitlines()
    assert first == f"Error processing line 1 of {environment.site_packages / 'deepeyes_patch.pth'}:"
    assert last == "Remainder of file ignored"
    assert "'deepeyes_patch'" in result.err


SERVING = [n for n in MODULES if not n.endswith("__init__.py") and n.partition("/")[0] not in COMMAND_LINE]


@pytest.mark.parametrize("name", SERVING)
def test_one_module_missing(damaged: Interpreter, name: str) -> None:
    with away(damaged.site_packages / "deepeyes_patch" / name):
        assert_quiet(damaged)
        assert_stopped(damaged, ON, "deepeyes", "pip install --force-reinstall")
        assert Path(name).stem in damaged.run("import sglang", environ=ON).err.splitlines()[-1]
        assert damaged.run(HOOKS_LIVE).printed() == "False"


@pytest.mark.parametrize("layer", sorted(integrity.MODULES))
def test_a_layer_missing(damaged: Interpreter, layer: str) -> None:
    with away(damaged.site_packages / "deepeyes_patch" / layer):
        assert_quiet(damaged)
        assert_stopped(damaged, ON, "deepeyes", "pip install --force-reinstall")


@pytest.mark.parametrize("layer", sorted(integrity.MODULES))
def test_the_docstring_of_a_layer_missing(damaged: Interpreter, layer: str) -> None:
    with away(damaged.site_packages / "deepeyes_patch" / layer / "__init__.py"):
        assert_live(damaged)


@pytest.mark.parametrize("name", COMMAND_LINE)
def test_the_command_line_missing(damaged: Interpreter, name: str) -> None:
    with away(damaged.site_packages / "deepeyes_patch" / name):
        assert_live(damaged)


def test_the_first_module_missing(damaged: Interpreter) -> None:
    with away(damaged.site_packages / "deepeyes_patch" / "__init__.py"):
        assert_reported(damaged)  # an empty namespace


def test_the_package_gone_and_the_pth_left(damaged: Interpreter) -> None:
    package = damaged.site_packages / "deepeyes_patch"
    with away(package):
        assert_reported(damaged)
        package.mkdir()
        assert_reported(damaged)


def test_only_byte_code_left(damaged: Interpreter) -> None:
    package = damaged.site_packages / "deepeyes_patch"
    writing = Interpreter(damaged.python, {**damaged.environ, "PYTHONDONTWRITEBYTECODE": ""})
    assert writing.run(HOOKS_LIVE, environ=ON).printed() == "True"
    with away(package):
        aside = package.with_name(f"aside-{package.name}-")
        shutil.copytree(aside / "__pycache__", package / "__pycache__")
        assert list((package / "__pycache__").glob("bootstrap.*.pyc"))
        assert_reported(damaged)


@pytest.mark.parametrize("left", [False, True])
def test_wrapt_removed_alone(damaged: Interpreter, left: bool) -> None:
    wrapt = damaged.site_packages / "wrapt"
    with away(wrapt):
        if left:  # a folder without modules
            (wrapt / "__pycache__").mkdir(parents=True)
        assert_quiet(damaged)
        assert_stopped(damaged, ON, "wrapt", "pip install", "DEEPEYES_PATCH=off")
        assert damaged.run(HOOKS_LIVE).printed() == "False"


def test_this_pth_beside_a_newer_package_without_start(damaged: Interpreter) -> None:
    package = damaged.site_packages / "deepeyes_patch"
    with away(package):
        package.mkdir()
        (package / "__init__.py").write_text('"""Another version, which starts another way."""\n')
        assert_reported(damaged)


def test_an_older_package_beside_this_pth(damaged: Interpreter) -> None:
    # The other way round: a checkout on PYTHONPATH comes first.
    assert_live(Interpreter(damaged.python, {"PYTHONPATH": f"{CHECKOUT}:{damaged.environ['PYTHONPATH']}"}))


def test_a_zipped_package(tmp_path: Path, wheel: Path, sglang_path: Path, offline: dict[str, str]) -> None:
    environment = interpreters.create(tmp_path / "env")
    pip("install", "wrapt", python=environment.python, **offline)
    zipped = tmp_path / "site-packages.zip"
    shutil.copy(wheel, zipped)
    # The archive is put on the path by a file that sorts before ours, which cannot be read in there.
    (environment.site_packages / "aaa-zip.pth").write_text(f"{zipped}\n")
    with zipfile.ZipFile(zipped) as archive:
        archive.extract("deepeyes_patch.pth", environment.site_packages)
    program = "import deepeyes_patch; print(deepeyes_patch.__file__)"
    assert environment.run(program).printed().startswith(str(zipped))
    assert_live(on_made_up(environment, sglang_path))
    # An archive that only PYTHONPATH names brings no .pth along, and does no harm.
    (environment.site_packages / "deepeyes_patch.pth").unlink()
    reached = Interpreter(environment.python, {"PYTHONPATH": f"{zipped}:{sglang_path}"})
    assert_quiet(reached)
    assert reached.run(HOOKS_LIVE, environ=ON).printed() == "False"


@pytest.mark.parametrize(
    "name",
    ["errors.py", "settings.py", "seams/rows.py", "cli/terminal.py", "cli/doctor.py"],
)
def test_the_command_line_says_what_to_do(damaged: Interpreter, name: str) -> None:
    with away(damaged.site_packages / "deepeyes_patch" / name):
        (damaged.site_packages / "deepeyes_patch" / name).touch()
        result = damaged.run("-m", "deepeyes_patch", "doctor")
    assert (result.code, result.out) == (1, ""), result
    assert "Traceback" not in result.err
    # The place from which pip installed it, so that the command works also where no index has the package.
    assert re.search(r"-m pip install --force-reinstall --no-deps /\S+\.whl$", result.err, re.MULTILINE), (
        result
    )
