"""``deepeyes_patch.start``, which Python 3.15 reads in place of the line in ``deepeyes_patch.pth`` (PEP 829).

`test_a_wheel_on_each_python` of test_roads.py runs a native 3.15 where there is one. Here it is CPython 3.15
as Pyodide has it: compiled for WebAssembly, with its own ``site.py``, which is what is looked at.
"""

from __future__ import annotations

import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import deepeyes_patch
from tests.install.conftest import Install
from tests.interpreters import CHECKOUT, HOOKS_LIVE, ON, clean_environ
from tests.lab import environments

START = CHECKOUT / "deepeyes_patch.start"
SECONDS = 120

_LOOK = """
import sys
print(sys.version_info[:2] == (3, 15), hasattr(sys, "pth_was_read"), flush=True)
print("deepeyes_patch" in sys.modules, sum(type(f).__name__ == "SGLangFinder" for f in sys.meta_path))
sys.path.append("/extra")
"""


def test_the_rules() -> None:
    """What the PEP says of such a file."""
    lines = [line.strip() for line in START.read_text("utf-8-sig").splitlines()]
    entries = [line for line in lines if line and not line.startswith("#")]
    assert entries == ["deepeyes_patch:start"]
    assert pkgutil.resolve_name(entries[0]) is deepeyes_patch.start
    # It stands in for `import` lines of the file of the same name, and for nothing else that is in there.
    pth = START.with_suffix(".pth").read_text("utf-8").splitlines()
    assert all(line.startswith(("import ", "#")) for line in pth)


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory: pytest.TempPathFactory, wheel: Path, by_uv: Install) -> Path:
    """Of a Python 3.15, with a line in ``deepeyes_patch.pth`` that tells whether it was run."""
    folder = tmp_path_factory.mktemp("pyodide")
    by_uv("install", "--target", folder, wheel, python=Path(sys.executable))
    with (folder / "deepeyes_patch.pth").open("a") as pth:
        pth.write("import sys; sys.pth_was_read = True\n")
    return folder


def run(site_packages: Path, sglang_path: Path, environ: dict[str, str]) -> list[str]:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("no node and npm here, which Pyodide's Python 3.15 runs on")
    try:
        module = environments.pyodide_layer() / "node_modules" / "pyodide" / "pyodide.mjs"
    except SystemExit as error:
        pytest.skip(f"no Pyodide here, whose Python 3.15 this runs: {error!s:.300}")
    script = Path(__file__).with_name("pyodide.mjs")
    variables = [f"{name}={value}" for name, value in {"HOME": "/", **environ}.items()]
    done = subprocess.run(
        [node, script, module, site_packages, sglang_path, _LOOK + HOOKS_LIVE, *variables],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr[-2000:]
    return done.stdout.splitlines()


def test_on(site_packages: Path, sglang_path: Path) -> None:
    assert run(site_packages, sglang_path, ON) == ["True False", "True 1", "True"]


def test_off(site_packages: Path, sglang_path: Path) -> None:
    """The function is called, as the file cannot ask about the switch itself, and leaves nothing."""
    assert run(site_packages, sglang_path, {}) == ["True False", "True 0", "False"]


def test_the_start_file_alone_keeps_the_line_from_running(
    site_packages: Path, sglang_path: Path, tmp_path: Path
) -> None:
    """Without it this very installation runs the line, so that the tests above can fail."""
    shutil.copytree(site_packages, tmp_path / "site")
    (tmp_path / "site" / START.name).unlink()
    assert run(tmp_path / "site", sglang_path, {})[:2] == ["True True", "False 0"]
