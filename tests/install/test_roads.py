"""Every way of installing places the start-up files where Python reads them, and the hooks are live."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from tests import interpreters
from tests.install.conftest import VERSIONS, Install, files_below, on_made_up, pip
from tests.interpreters import HOOKS_LIVE, OFF, ON, UNKNOWN, Interpreter
from tests.lab import pythons

ENTRY_POINT = """
from importlib.metadata import entry_points
(found,) = entry_points(group="sglang.srt.plugins")
found.load()()
"""


def assert_quiet(interpreter: Interpreter) -> None:
    """A process that does not import sglang notices nothing, whatever the switch says."""
    for environ in (OFF, ON, UNKNOWN):
        result = interpreter.run("pass", environ=environ)
        assert result.silent(), (environ, result)


def assert_live(interpreter: Interpreter) -> None:
    """Quiet everywhere; hooks when on, none when off, a stop at an unknown value."""
    assert_quiet(interpreter)
    assert interpreter.run(HOOKS_LIVE, environ=ON).printed() == "True"
    assert interpreter.run(HOOKS_LIVE).printed() == "False"
    assert_stopped(interpreter, UNKNOWN, "SettingsError: DEEPEYES_PATCH='maybe'")


def assert_stopped(interpreter: Interpreter, environ: dict[str, str], *words: str) -> None:
    result = interpreter.run("import sglang", environ=environ)
    assert result.code != 0, result
    for word in words:
        assert word in result.err.splitlines()[-1], result


# --- roads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wheel_on_each_python(version: str, tmp_path: Path, wheel: Path, sglang_path: Path) -> None:
    base = pythons.find(version)
    if base is None:
        pytest.skip(f"no Python {version} here: not on the path, not in pyenv")
    environment = interpreters.create(tmp_path / "env", base)
    pip("install", wheel, python=environment.python)
    assert_live(on_made_up(environment, sglang_path))


@pytest.mark.parametrize("wrapt", ["wrapt==1.16.0", "wrapt==1.17.*", "wrapt"])
def test_each_wrapt(wrapt: str, fresh: Interpreter, wheel: Path) -> None:
    pip("install", wheel, wrapt, python=fresh.python)
    assert_live(fresh)
    # The ends of the range differ in how they run modules with -m, and in what a call through the class
    # shows of its arguments.
    result = fresh.run("-m", "sglang.srt.managers.multimodal_processor", environ=ON)
    assert result.printed() == "ran as __main__"
    program = """
import inspect
from sglang.srt.managers import multimodal_processor as module
assert inspect.getsource(module) == open(module.__file__).read()
from deepeyes_patch.seams import wrapping
def named(call):
    print(dict(call.arguments))
    return call.proceed()
class C:
    def method(self, a, b=2): return a + b
wrapping.wrap(C, "method", named)
kept = C.method
def on_top(self, *args): return kept(self, *args)
on_top.__wrapped__ = kept
C.method = on_top
assert C().method(1) == kept(C(), 1) == 3
assert wrapping.displaced() == []
C.method = vars(C)["method"].__wrapped__.__wrapped__
assert len(wrapping.displaced()) == 1
"""
    assert fresh.run(program).printed().splitlines() == ["{'a': 1}"] * 2


def test_an_sdist(fresh: Interpreter, sdist: Path, offline: dict[str, str]) -> None:
    pip("install", sdist, python=fresh.python, **offline)
    assert_live(fresh)


@pytest.mark.parametrize("isolation", [True, False])
def test_an_editable_install(
    isolation: bool, fresh: Interpreter, checkout: Path, offline: dict[str, str]
) -> None:
    options = [] if isolation else ["--no-build-isolation"]
    if not isolation:
        pip("install", "hatchling>=1.27", "editables", python=fresh.python, **offline)
    before = files_below(fresh.site_packages)
    pip("install", *options, "-e", checkout, python=fresh.python, **offline)
    program = "import deepeyes_patch; print(deepeyes_patch.__file__)"
    assert fresh.run(program).printed() == str(checkout / "deepeyes_patch" / "__init__.py")
    for name in ("deepeyes_patch.pth", "deepeyes_patch.start"):
        assert (fresh.site_packages / name).read_bytes() == (checkout / name).read_bytes()
    assert_live(fresh)
    pip("uninstall", "-y", "deepeyes-patch", python=fresh.python)
    left = files_below(fresh.site_packages) - before
    assert not [name for name in left if "deepeyes" in name]


def test_an_editable_install_by_uv(fresh: Interpreter, checkout: Path, tools: Path, wheelhouse: Path) -> None:
    options = ["-q", "--no-index", "--find-links", wheelhouse, "--python", fresh.python]
    result = Interpreter(tools / "uv").run("pip", "install", *options, "-e", checkout)
    assert result.code == 0, result
    assert_live(fresh)


def test_the_user_site(tmp_path: Path, wheel: Path, sglang_path: Path, offline: dict[str, str]) -> None:
    environment = interpreters.create(tmp_path / "env", system_site_packages=True)
    user = {"PYTHONUSERBASE": str(tmp_path / "user")}
    pip("install", "--user", "--ignore-installed", wheel, python=environment.python, **user, **offline)
    assert not list(environment.site_packages.glob("deepeyes*"))
    (pth,) = (tmp_path / "user").glob("lib/python3.*/site-packages/deepeyes_patch.pth")
    assert pth.with_suffix(".start").is_file()
    assert_live(on_made_up(environment, sglang_path, **user))
    # Without the user site nothing of ours is there.
    result = on_made_up(environment, sglang_path, **user).run(HOOKS_LIVE, environ=ON, flags=["-s"])
    assert result.printed() == "False"


def test_a_target_folder_is_no_site_directory(
    fresh: Interpreter, tmp_path: Path, wheel: Path, sglang_path: Path, offline: dict[str, str]
) -> None:
    pip("install", "--target", tmp_path / "target", wheel, python=fresh.python, **offline)
    path = f"{tmp_path / 'target'}:{sglang_path}"
    reached = Interpreter(fresh.python, {"PYTHONPATH": path})
    assert_quiet(reached)
    # Python reads .pth files in site directories only: the switch has nobody to turn to.
    assert reached.run(HOOKS_LIVE, environ=ON).printed() == "False"
    # The second road: SGLang's own plugin loader, from 0.5.11 on.
    assert reached.run(ENTRY_POINT + HOOKS_LIVE, environ=ON).printed() == "True"
    assert reached.run(ENTRY_POINT + HOOKS_LIVE).printed() == "False"
    result = reached.run(ENTRY_POINT, environ=UNKNOWN)
    assert result.err.startswith("deepeyes-patch: DEEPEYES_PATCH='maybe'")


def test_the_environment_below_holds_the_dependencies(
    tmp_path: Path, wheel: Path, sglang_path: Path, by_uv: Install
) -> None:
    # --system-site-packages: our .pth runs before the site directory that holds wrapt is on the path.
    environment = interpreters.create(tmp_path / "env", system_site_packages=True)
    lower = tmp_path / "lower"
    by_uv("install", "--target", lower, "wrapt", python=environment.python)
    by_uv("install", "--no-deps", wheel, python=environment.python)
    (environment.site_packages / "zzz-lower.pth").write_text(f"{lower}\n")
    order = (
        "import sys; paths = [path for path in sys.path if path.endswith(('site-packages', 'lower'))]\n"
        "print(paths.index(sys.argv[1]) < paths.index(sys.argv[2]))"
    )
    result = environment.run("-c", order, environment.site_packages, lower)
    assert result.printed() == "True"
    assert_live(on_made_up(environment, sglang_path))


def test_the_package_lies_in_the_environment_below(
    tmp_path: Path, installed: Interpreter, sglang_path: Path
) -> None:
    # A .pth of the upper environment runs while the package's own directory is not on the path yet. Python
    # says so, and the one below does the work.
    upper = interpreters.create(tmp_path / "env")
    shutil.copy(installed.site_packages / "deepeyes_patch.pth", upper.site_packages)
    (upper.site_packages / "zzz-lower.pth").write_text(
        f"import site; site.addsitedir({str(installed.site_packages)!r})\n"
    )
    both = on_made_up(upper, sglang_path)
    assert both.run(HOOKS_LIVE).printed() == "False"
    result = both.run(HOOKS_LIVE, environ=ON)
    assert (result.code, result.out) == (0, "True\n")
    assert str(upper.site_packages / "deepeyes_patch.pth") in result.err.splitlines()[0]


# --- what a process pays ----------------------------------------------------------------------------


def test_what_start_up_imports(installed: Interpreter) -> None:
    def imported(environ: dict[str, str]) -> set[str]:
        result = installed.run("-c", "pass", environ=environ, flags=["-X", "importtime"])
        assert (result.code, result.out) == (0, "")
        return {line.rpartition("|")[2].strip() for line in result.err.splitlines()}

    off, on = imported(OFF), imported(ON)
    assert "site" in off  # the report was read
    assert not [name for name in off if "deepeyes" in name or "wrapt" in name]
    assert on - off == {"deepeyes_patch"}


def test_building_with_isolation_while_the_switch_is_on(
    installed: Interpreter, tmp_path: Path, offline: dict[str, str]
) -> None:
    # pip builds in a child of the environment's own interpreter, which reads our .pth and finds none of
    # our dependencies' folders.
    source = tmp_path / "other-1.0"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "other"\nversion = "1.0"\n[tool.setuptools]\npy-modules = ["other"]\n'
    )
    (source / "other.py").write_text("")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    archive = tmp_path / "other-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source, "other-1.0")
    pip("install", archive, python=installed.python, **ON, **offline)
    assert installed.run("import other", environ=ON).silent()
    pip("uninstall", "-y", "other", python=installed.python, **UNKNOWN)
