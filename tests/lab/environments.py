"""Installs what the lab needs: ``python3 tests/lab/environments.py [RELEASE ...]``.

Standard library only, so that a bare machine can run it. Without arguments it prepares the releases
that every test run covers (`releases.TESTED`) and the plain environment for unit tests (``base``). ``docs``
builds the site and ``packaging`` looks at distributions; these hold tools, and share nothing with the others.

Two places, so that a fresh checkout is cheap:

- a cache that no checkout owns (``$DEEPEYES_LAB``, else ``~/.cache/deepeyes-patch/lab``), made of
  layers: ``base-<hash>`` is a virtual environment with torch and everything that the releases
  share; ``sglang-<version>-<hash>`` is a folder with one release and its own pins. The hash is of
  the pins, so a layer never changes after it is complete;
- ``.lab/<release>/`` in the checkout: an almost empty virtual environment that puts the stand-ins,
  the release and the base on its path, and has this checkout's own wheel installed in it, as a
  user would have it: ``.pth`` file, entry points and all.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

if __package__ in (None, ""):
    # Run as a script: Python put tests/lab first on the path, where `server` or `client` could
    # shadow real packages. The checkout's root is what belongs there.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.lab import pythons
from tests.lab.releases import INSTALLABLE, TESTED, Release

CHECKOUT = Path(__file__).resolve().parents[2]
LOCKS = Path(__file__).resolve().parent / "locks"
STANDINS = Path(__file__).resolve().parent / "standins"
BASE = "base"
TOOLS = ("docs", "packaging")
# The locks were made on this version. Another may do, where its compiled wheels are to be had.
LOCK_PYTHON = "3.11"
COMPLETE = ".complete"
# What a Ray actor takes beside the base; 70 MB to fetch, 240 MB on disk, so only its own test has it.
RAY = ("ray==2.58.0", "msgpack==1.2.4", "protobuf==7.36.2")
# Measures which branches of ours the tests visit; only `tests.coverage` has it.
COVERAGE = "coverage==7.17.5"
# CPython 3.15.0rc1 for node, where no other Python 3.15 is to be had; 15 MB, by npm.
PYODIDE = "pyodide@315.0.0-alpha.2"
INSTALL_SECONDS = 1800  # bound on one pip run: torch is gigabytes


def cache() -> Path:
    """The folder of the layers, shared by all checkouts of this user."""
    if chosen := os.environ.get("DEEPEYES_LAB"):
        return Path(chosen).expanduser().resolve()
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "deepeyes-patch" / "lab"


def python_of(release: str = BASE, python: str = LOCK_PYTHON) -> Path:
    """The interpreter of a release's environment in this checkout (or of ``base``)."""
    return _environment(release, python) / "bin" / "python"


def base_python() -> Path:
    """The interpreter of the shared base: pip, build, ruff and mypy live beside it."""
    return _base_layer(LOCK_PYTHON) / "bin" / "python"


def ensure(releases: Sequence[str] = (), python: str = LOCK_PYTHON) -> None:
    """Make every named environment usable (default: those that are tested), building what is missing."""
    names = list(releases) or [BASE, *TESTED]
    for tools in TOOLS:
        if tools in names:
            _ensure_tools(tools)
    names = [name for name in names if name not in TOOLS]
    if not names:
        return
    if unknown := [name for name in names if name != BASE and name not in INSTALLABLE]:
        known = ", ".join([BASE, *TOOLS, *INSTALLABLE])
        raise SystemExit(f"unknown release {', '.join(unknown)}; known: {known}")
    for version in {LOCK_PYTHON, python}:  # the lock's own has the tools
        _layer(_base_layer(version), functools.partial(_build_base, version))
    for name in names:
        if name != BASE:
            release = INSTALLABLE[name]
            _layer(overlay(release, python), functools.partial(_build_overlay, release, python))
    with locked(CHECKOUT / ".lab" / "lock"):
        (CHECKOUT / ".lab" / ".gitignore").write_text("*\n")
        wheel = _wheel()
        for name in names:
            _link(name, wheel, python)


def _ensure_tools(name: str) -> None:
    lock = LOCKS / f"{name}.txt"
    layer = cache() / f"{name}-{_digest(lock.read_text(), _spelt(LOCK_PYTHON))}"
    _layer(layer, functools.partial(_build_tools, lock))
    link = CHECKOUT / ".lab" / name
    with locked(CHECKOUT / ".lab" / "lock"):
        link.unlink(missing_ok=True)
        link.symlink_to(layer)


# Layers of the cache


def _base_layer(python: str) -> Path:
    pins = "".join(lock.read_text() for lock in _base_locks())
    return cache() / f"base-{_digest(pins, _spelt(python))}"


def overlay(release: Release, python: str = LOCK_PYTHON) -> Path:
    """The folder of the cache with one release and its pins."""
    return cache() / f"sglang-{release.version}-{_digest(*release.requirements, _spelt(python))}"


def ray_layer() -> Path:
    """The folder of the cache with Ray, installed on the first call."""
    return packages_layer("ray", *RAY)


def coverage_layer() -> Path:
    """The folder of the cache with coverage.py, installed on the first call."""
    return packages_layer("coverage", COVERAGE)


def packages_layer(name: str, *requirements: str) -> Path:
    """A folder of the cache with packages that only few tests need, without their dependencies."""
    folder = cache() / f"{name}-{_digest(*requirements, _spelt(LOCK_PYTHON))}"

    def build(folder: Path) -> None:
        with _step(", ".join(requirements)):
            _pip(str(base_python()), "install", "--no-deps", "--target", str(folder), *requirements)

    _layer(folder, build)
    return folder


def pyodide_layer() -> Path:
    """The folder of the cache with Pyodide, installed on the first call, which needs npm."""
    folder = cache() / f"pyodide-{_digest(PYODIDE)}"

    def build(folder: Path) -> None:
        with _step(PYODIDE):
            # npm's own patience with a registry that does not answer is ten minutes.
            quiet = (
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                "--fetch-retries=1",
                "--fetch-timeout=60000",
            )
            _run(["npm", "install", *quiet, "--prefix", str(folder), PYODIDE])

    _layer(folder, build)
    return folder


def _spelt(python: str) -> str:
    """As in the names of layers that exist already."""
    return str(tuple(map(int, python.split("."))))


def _base_locks() -> tuple[Path, Path]:
    return LOCKS / "base.txt", LOCKS / "base-nodeps.txt"


def _layer(folder: Path, build: Callable[[Path], None]) -> None:
    if (folder / COMPLETE).exists():
        return
    with locked(folder.with_name(folder.name + ".lock")):
        if (folder / COMPLETE).exists():  # another caller built it while we waited
            return
        if folder.exists():
            _say(f"removing half-made {folder.name}")
            shutil.rmtree(folder)
        build(folder)
        (folder / COMPLETE).touch()


def _build_base(version: str, folder: Path) -> None:
    # Not relocatable, so it is built where it stays; the marker says when it is whole.
    with _step(f"base: virtual environment of Python {version}"):
        _run([_interpreter(version), "-m", "venv", str(folder)])
    consistent, inconsistent = _base_locks()
    python = str(folder / "bin" / "python")
    with _step("base: packages (torch is several GB; minutes on a bare machine)"):
        _pip(python, "install", "-r", str(consistent))
    with _step("base: packages whose own pins contradict the rest"):
        _pip(python, "install", "--no-deps", "-r", str(inconsistent))


def _build_tools(lock: Path, folder: Path) -> None:
    with _step(f"{lock.stem}: tools"):
        _run([_interpreter(LOCK_PYTHON), "-m", "venv", str(folder)])
        _pip(str(folder / "bin" / "python"), "install", "--no-deps", "-r", str(lock))


def _build_overlay(release: Release, python: str, folder: Path) -> None:
    with _step(f"sglang {release.version}: {', '.join(release.requirements[1:])}"):
        _pip(
            *(str(_base_layer(python) / "bin" / "python"), "install"),
            *("--no-deps", "--target", str(folder)),
            *release.requirements,
        )


# Environments of the checkout


def _environment(name: str, python: str) -> Path:
    return CHECKOUT / ".lab" / (name if python == LOCK_PYTHON else f"{name}-python{python}")


def _link(name: str, wheel: Path | None, python: str) -> None:
    """Bring ``.lab/<name>`` up to date with the layers and the checkout's wheel."""
    folder = _environment(name, python)
    base = _base_layer(python)
    packages = folder / "lib" / f"python{python}" / "site-packages"
    layers = [base / "lib" / f"python{python}" / "site-packages"]
    if name != BASE:
        layers = [STANDINS, overlay(INSTALLABLE[name], python), *layers]
    wanted = {
        "layers": [str(layer) for layer in layers],
        "wheel": wheel.parent.name if wheel else None,  # the digest of its sources
    }
    stamp = folder / COMPLETE
    have = json.loads(stamp.read_text()) if stamp.exists() else {}
    if have == wanted:
        return
    with _step(f".lab/{folder.name}: {wheel.name if wheel else 'no wheel'}"):
        stamp.unlink(missing_ok=True)
        if have.get("layers") != wanted["layers"] or wheel is None:
            shutil.rmtree(folder, ignore_errors=True)
            _run([_interpreter(python), "-m", "venv", "--without-pip", str(folder)])
            (packages / "lab.pth").write_text("".join(f"{layer}\n" for layer in layers))
            # `python -m ruff` looks for its binary in the scripts of the running environment.
            (folder / "bin" / "ruff").symlink_to(base / "bin" / "ruff")
        if wheel is not None:
            _pip(
                *(str(base_python()), "--python", str(folder / "bin" / "python"), "install"),
                *("--no-deps", "--force-reinstall", str(wheel)),
            )
        stamp.write_text(json.dumps(wanted))


def _sources() -> list[Path]:
    """What the wheel is made of; README and LICENSE are part of its metadata."""
    names = ("pyproject.toml", "hatch_build.py", "*.pth", "*.start", "README*", "LICENSE*")
    files = [path for pattern in names for path in CHECKOUT.glob(pattern)]
    files += (CHECKOUT / "deepeyes_patch").rglob("*")
    return sorted(f for f in files if f.is_file() and f.suffix != ".pyc")


def _wheel() -> Path | None:
    """This checkout's wheel, built when its sources changed; None while there is no project."""
    if not (CHECKOUT / "pyproject.toml").exists():
        _say("no pyproject.toml yet: the environments get no wheel of this checkout")
        return None
    sources = [f"{f.relative_to(CHECKOUT)}:{_digest(f.read_bytes())}" for f in _sources()]
    folder = CHECKOUT / ".lab" / "wheel" / _digest(*sources)
    if not (built := list(folder.glob("*.whl"))):
        with _step("wheel of this checkout"):
            shutil.rmtree(folder.parent, ignore_errors=True)
            _pip(
                *(str(base_python()), "wheel", "--no-deps", "--no-build-isolation"),
                *("--wheel-dir", str(folder), str(CHECKOUT)),
            )
        built = list(folder.glob("*.whl"))
    (wheel,) = built
    return wheel


# Tools


def _interpreter(version: str) -> str:
    if found := pythons.find(version):
        return found
    raise SystemExit(f"the lab needs Python {version}, which is neither on PATH nor in pyenv")


def _pip(python: str, *arguments: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    if arguments[0] == "--python":  # a global option: it goes before the command
        quiet, arguments = [*quiet, *arguments[:2]], arguments[2:]
    _run([python, "-m", "pip", *quiet, *arguments])


def _run(command: Sequence[str]) -> None:
    # A caller's own environment must not leak in: pip and venv would act on it.
    ignored = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "DEEPEYES_PATCH")
    clean = {key: value for key, value in os.environ.items() if key not in ignored}
    done = subprocess.run(
        command,
        env=clean,
        timeout=INSTALL_SECONDS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, waiting for whoever has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process ({path})")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    print(f"lab: {what} ...", end=" ", flush=True)
    start = time.monotonic()
    yield
    print(f"{time.monotonic() - start:.1f} s", flush=True)


def _say(what: str) -> None:
    print(f"lab: {what}", flush=True)


def _digest(*parts: str | bytes) -> str:
    joined = b"\0".join(part.encode() if isinstance(part, str) else part for part in parts)
    return hashlib.sha256(joined).hexdigest()[:12]


if __name__ == "__main__":
    ensure(sys.argv[1:])
