"""Upgraded, reinstalled and removed, by pip and by uv, also while processes run that have us loaded.

A process that runs goes on, or stops and says why. It must not lose a repair, or mix versions, in silence.
"""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deepeyes_patch.seams import table, table_mrope
from tests import interpreters, made_up
from tests.install.conftest import Install, build, copy_sources, files_below, on_made_up
from tests.install.test_roads import assert_quiet
from tests.interpreters import HOOKS_LIVE, ON, Interpreter, Result, clean_environ

# What only the previous version has.
RETIRED = ("deepeyes_patch/retired.py", "deepeyes_patch_retired.pth")


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a version before this one, with a module and a start-up file that this one has not."""
    source = copy_sources(tmp_path_factory.mktemp("previous") / "source")
    for name, old, new in (
        ("deepeyes_patch/__init__.py", r'^__version__ = ".*"$', '__version__ = "0.0.1"'),
        ("deepeyes_patch.pth", r"\A", "# the one of the previous version\n"),
        ("pyproject.toml", r'^("deepeyes_patch.pth" = .*)$', rf'\1\n"{RETIRED[1]}" = "{RETIRED[1]}"'),
    ):
        text = (source / name).read_text()
        changed, count = re.subn(old, new, text, count=1, flags=re.MULTILINE)
        assert count == 1, name
        (source / name).write_text(changed)
    (source / RETIRED[0]).write_text("")
    (source / RETIRED[1]).write_text("import deepeyes_patch.retired\n")
    (wheel,) = build(source, source.parent / "dist", "--wheel").glob("*.whl")
    assert "-0.0.1-" in wheel.name
    return wheel


# --- at rest ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["by_pip", "by_uv"])
def test_from_the_previous_version_to_none(
    name: str, request: pytest.FixtureRequest, fresh: Interpreter, previous: Path, wheel: Path
) -> None:
    install: Install = request.getfixturevalue(name)
    root, site = fresh.python.parent.parent, fresh.site_packages
    install("install", "wrapt", python=fresh.python)
    before = files_below(root)
    dependencies = files_below(site)

    install("install", previous, python=fresh.python)
    assert fresh.run("import deepeyes_patch.retired as r; print(r.__name__)").printed()
    assert set(RETIRED) <= files_below(site)
    assert fresh.run(HOOKS_LIVE, environ=ON).printed() == "True"  # byte code is written

    with zipfile.ZipFile(wheel) as archive:
        files = {path for path in archive.namelist() if ".dist-info/" not in path}
        pth = archive.read("deepeyes_patch.pth")
    wanted = files | {str(folder) for path in files for folder in Path(path).parents if str(folder) != "."}
    for options in (["--upgrade"], ["--force-reinstall", "--no-deps"]):
        install("install", *options, wheel, python=fresh.python)
        assert {path for path in files_below(site) - dependencies if ".dist-info" not in path} == wanted
        assert len(list(site.glob("deepeyes_patch-*.dist-info"))) == 1
        assert (site / "deepeyes_patch.pth").read_bytes() == pth
        assert not list(site.rglob("*retired*"))  # in a __pycache__ either
        assert fresh.run(HOOKS_LIVE, environ=ON).printed() == "True"

    install("uninstall", "deepeyes-patch", python=fresh.python)
    assert files_below(root) == before
    assert not list(root.rglob("*deepeyes*"))
    assert_quiet(fresh)
    assert fresh.run(HOOKS_LIVE, environ=ON).printed() == "False"


# --- under a process that runs ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(
    tmp_path_factory: pytest.TempPathFactory, wheel: Path, by_uv: Install, sglang_path: Path
) -> Interpreter:
    """An environment whose installation changes while a process of it runs. Its ``sglang`` fits."""
    folder = interpreters.write_sglang(tmp_path_factory.mktemp("whole"))
    made_up.write(folder, table.QWEN_VL, table_mrope.ROTARY_EMBEDDING)
    created = interpreters.create(tmp_path_factory.mktemp("running"))
    by_uv("install", wheel, python=created.python)
    return on_made_up(created, folder)


@pytest.fixture(params=["removed", "replaced", "reinstalled"])
def change(
    request: pytest.FixtureRequest, environment: Interpreter, by_uv: Install, wheel: Path, previous: Path
) -> Iterator[Callable[[], str]]:
    """Changes the installation, and says how; it is put back afterwards."""
    python = environment.python
    if environment.run("import deepeyes_patch.startup.installer").code:
        by_uv("install", "--reinstall", "--no-deps", wheel, python=python)

    def now() -> str:
        if request.param == "removed":
            by_uv("uninstall", "deepeyes-patch", python=python)
        else:
            other = previous if request.param == "replaced" else wheel
            by_uv("install", "--reinstall", "--no-deps", other, python=python)
        return str(request.param)

    yield now
    by_uv("install", "--reinstall", "--no-deps", wheel, python=python)


@contextmanager
def running(environment: Interpreter, first: str, then: str) -> Iterator[Callable[[], Result]]:
    """A process that runs ``first``, waits for the returned function to be called, and runs ``then``."""
    child = subprocess.Popen(
        [environment.python, "-c", f"{first}\nprint('up', flush=True); input()\n{then}"],
        env=clean_environ(**environment.environ, **ON),
        cwd=environment.python.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def go_on() -> Result:
        out, err = child.communicate("\n", timeout=interpreters.SECONDS)
        return Result(child.returncode, out, err)

    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        yield go_on
    finally:
        child.kill()
        child.communicate()


def assert_stopped(result: Result, how: str) -> None:
    """With a last line that says what became of us, and what to do."""
    said = {
        "removed": ["cannot be loaded", "deepeyes_patch", "pip install --force-reinstall"],
        "replaced": ["was replaced by another version", "Start it again"],
    }
    for words in said[how]:
        assert words in last_line(result), result


def last_line(result: Result) -> str:
    """The end of the traceback with which a process has stopped."""
    assert (result.code, result.out) == (1, ""), result
    return result.err.splitlines()[-1]


def test_while_it_waits_for_sglang(environment: Interpreter, change: Callable[[], str]) -> None:
    with running(environment, "", HOOKS_LIVE) as go_on:
        how = change()
        result = go_on()
    if how == "reinstalled":
        assert result.printed() == "True"
    else:
        assert_stopped(result, how)


def test_between_sglang_and_its_processor(environment: Interpreter, change: Callable[[], str]) -> None:
    """The hooks are there, and what they import is not yet."""
    then = """
from sglang.srt.multimodal.processors.qwen_vl import QwenVLImageProcessor
QwenVLImageProcessor(None, None, None)
"""
    with running(environment, "import sglang", then) as go_on:
        how = change()
        result = go_on()
    if how == "reinstalled":  # all of ours is found, and this environment has neither NumPy nor torch
        assert "repair, ModuleNotFoundError: No module named 'numpy'. Fix that" in last_line(result)
    else:
        assert_stopped(result, how)


def test_between_sglang_and_its_rope(environment: Interpreter, change: Callable[[], str]) -> None:
    """No processor is constructed in a scheduler: it is the rope that must not be stock's in silence."""
    then = """
from sglang.srt.layers.rotary_embedding import get_rope
chunked = {"mrope_section": [24, 20, 20]}
for scaling in None, {"rope_type": "yarn"}, chunked:
    assert get_rope(128, rope_scaling=scaling) == "made up"
print(get_rope(128, rope_scaling={**chunked, "mrope_interleaved": True}))
"""
    with running(environment, "import sglang", then) as go_on:
        how = change()
        result = go_on()
    if how == "reinstalled":
        assert "repair, ModuleNotFoundError: No module named 'torch'. Fix that" in last_line(result)
    else:
        assert_stopped(result, how)


def test_once_it_is_patched(environment: Interpreter, change: Callable[[], str]) -> None:
    first = "import deepeyes_patch\nfrom sglang.srt.managers import multimodal_processor"
    then = """
assert type(multimodal_processor.get_mm_processor).__name__ == "SeamWrapper"
assert multimodal_processor.get_mm_processor(None, None, None, None) == "constructed"
assert set(deepeyes_patch.status()) == {"processor", "mrope", "video", "sampling", "deepstack"}
deepeyes_patch.uninstall()
print(type(multimodal_processor.get_mm_processor).__name__)
"""
    with running(environment, first, then) as go_on:
        change()
        assert go_on().printed() == "function"
