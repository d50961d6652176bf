"""Where an installation may lie: in a prefix as conda's, on PYTHONPATH alone, in a layer nobody writes to."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import interpreters
from tests.install.conftest import Install, files_below, on_made_up, pip
from tests.install.test_roads import assert_live
from tests.interpreters import HOOKS_LIVE, ON, Interpreter
from tests.lab import pythons

# What doctor finds wrong with the made-up sglang.
ABOUT_SGLANG = {"incompatible", "sglang-unchecked"}


def doctor(interpreter: Interpreter) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """What it finds, by name, and which children load us."""
    result = interpreter.run("-m", "deepeyes_patch", "doctor", "--json", environ=ON)
    assert (result.code, result.err) == (1, ""), result
    report = json.loads(result.out)
    return {finding["id"]: finding for finding in report["findings"]}, report["startup"]["children"]


# --- a prefix as conda makes it -----------------------------------------------------------------------


@pytest.fixture
def prefix(tmp_path: Path) -> Interpreter:
    """An interpreter of its own with a standard library below one folder, and no ``pyvenv.cfg``.

    The binary is copied, as Python follows a link to it when it looks for its prefix. The standard library is
    linked, file by file, which nothing notices.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    base = pythons.find(version.removeprefix("python"))
    assert base is not None
    (tmp_path / "prefix" / "bin").mkdir(parents=True)
    library = tmp_path / "prefix" / "lib" / version
    (library / "site-packages").mkdir(parents=True)
    for path in Path(sysconfig.get_path("stdlib")).iterdir():
        if path.name not in ("site-packages", "dist-packages", "__pycache__"):
            (library / path.name).symlink_to(path)
    python = tmp_path / "prefix" / "bin" / version
    shutil.copy(Path(base).resolve(), python)
    python.with_name("python").symlink_to(version)
    made = Interpreter(python.with_name("python"))
    program = "import sys; print(sys.prefix, sys.base_prefix, sys.exec_prefix)"
    assert made.run(program).printed().split() == [str(tmp_path / "prefix")] * 3
    return made


def test_a_prefix_with_its_own_python(
    prefix: Interpreter, wheel: Path, sglang_path: Path, offline: dict[str, str]
) -> None:
    root = prefix.python.parent.parent
    # By a pip outside of it, which has these packages in its own environment.
    pip("install", "--prefix", root, "--ignore-installed", wheel, **offline)
    assert (prefix.site_packages / "deepeyes_patch.pth").is_file()
    environment = on_made_up(prefix, sglang_path)
    assert_live(environment)
    assert prefix.python.with_name("deepeyes-patch").is_file()
    found, children = doctor(environment)
    assert children == {"fresh": "live", "spawn": "live", "-I": "live", "-E": "live", "-S": "off"}
    assert set(found) == ABOUT_SGLANG
    pip("uninstall", "-y", "deepeyes-patch", python=prefix.python)
    assert not list(root.rglob("*deepeyes*"))


# --- a folder on PYTHONPATH ---------------------------------------------------------------------------


def test_what_doctor_says_of_a_target_folder(
    fresh: Interpreter, tmp_path: Path, wheel: Path, sglang_path: Path, by_uv: Install
) -> None:
    """The entry point is the only road then, from SGLang 0.5.11 on (test_roads.py, e2e/test_plugin.py)."""
    target = tmp_path / "target"
    by_uv("install", "--target", target, wheel, python=fresh.python)
    found, children = doctor(Interpreter(fresh.python, {"PYTHONPATH": f"{target}:{sglang_path}"}))
    assert set(children.values()) == {"off"}
    assert set(found) == {"pth-missing", "start-missing", "not-live"} | ABOUT_SGLANG
    message = (
        "no site directory of this Python holds deepeyes_patch.pth, so no process loads the repairs at start"
    )
    assert found["pth-missing"]["message"] == message
    # test_run.py starts a command that way from such a folder.
    assert found["not-live"]["remedy"].endswith("or start with: deepeyes-patch run -- CMD")
    assert {found[name]["level"] for name in ("pth-missing", "not-live")} == {"error"}
    # An SGLang that loads plugins finds the entry point there.
    plugins = interpreters.write_sglang(tmp_path / "newer") / "sglang" / "srt" / "plugins"
    plugins.mkdir()
    (plugins / "__init__.py").touch()
    path = f"{target}:{tmp_path / 'newer'}"
    found, _ = doctor(Interpreter(fresh.python, {"PYTHONPATH": path}))
    assert {found[name]["level"] for name in ("pth-missing", "not-live")} == {"warning"}
    assert "as a plugin, but not in HTTP workers" in found["not-live"]["message"]
    found, _ = doctor(Interpreter(fresh.python, {"PYTHONPATH": path, "SGLANG_PLUGINS": "another"}))
    assert found["not-live"]["level"] == "error"


# --- a read-only layer --------------------------------------------------------------------------------

_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


@pytest.fixture(params=["mount", "modes"])
def layer(
    request: pytest.FixtureRequest, tmp_path: Path, wheel: Path, sglang_path: Path, by_uv: Install
) -> Iterator[Interpreter]:
    """An environment without byte code that no process can write to, as below a container."""
    environment = interpreters.create(tmp_path / "layer" / "env")
    by_uv("install", wheel, "psutil", python=environment.python)  # as SGLang brings it, for `status`
    root = tmp_path / "layer"
    if request.param == "mount":
        prefix = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _MOUNT, str(root)]
    else:
        # Modes do not bind root, unless it gives up what exempts it from them.
        prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if prefix and shutil.which(prefix[0]) is None:
        pytest.skip(f"no {prefix[0]} here")
    folders = [root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())]
    try:
        if request.param == "modes":
            for folder in folders:
                folder.chmod(0o555)
        tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, timeout=10)
        if tried.returncode != 0:
            pytest.skip(f"not permitted here: {' '.join(prefix[:5])}: {tried.stderr.strip()}")
        for folder in (environment.site_packages, environment.site_packages / "deepeyes_patch"):
            tried = subprocess.run([*prefix, "touch", folder / "x"], capture_output=True, timeout=10)
            assert tried.returncode != 0, "the layer can be written to"
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.join([*prefix, str(environment.python)])} "$@"\n')
        python.chmod(0o755)
        yield on_made_up(Interpreter(python), sglang_path)
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_a_read_only_layer(layer: Interpreter, tmp_path: Path) -> None:
    before = files_below(tmp_path / "layer", without=())
    assert not [name for name in before if name.endswith(".pyc") and "deepeyes" in name]
    assert_live(layer)
    found, children = doctor(layer)
    assert children == {"fresh": "live", "spawn": "live", "-I": "live", "-E": "live", "-S": "off"}
    assert set(found) == ABOUT_SGLANG
    status = """
import json, os, subprocess, sys
from sglang.srt.managers import multimodal_processor
command = [sys.executable, "-m", "deepeyes_patch", "status", "--json", str(os.getpid())]
report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
(ours,) = (process for process in report["processes"] if process["pid"] == os.getpid())
print(ours["live"], ours["repairs"]["processor"])
"""
    assert layer.run(status, environ=ON).printed() == "True waiting"
    started = layer.run("-m", "deepeyes_patch", "run", "--", layer.python, "-c", HOOKS_LIVE)
    assert started.printed() == "True"
    assert files_below(tmp_path / "layer", without=()) == before
