"""What is installed in this environment, read from files and metadata; none of it is imported."""

from __future__ import annotations

import base64
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import site
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import deepeyes_patch
from deepeyes_patch.observe import release

# SHA-256 of the start-up files that belong to this version.
SHIPPED = {
    "deepeyes_patch.pth": "a2ee128fc872b56becb2fab62e42709dc375543fcc3fbf1f9add65cd4d6dde83",
    "deepeyes_patch.start": "1204d708f1637ffa5189958ced914f61bf00b25d17a79fe63d3438528e65433a",
}


@dataclass(frozen=True)
class StartFile:
    """A start-up file in a site directory. ``intact``: it is unchanged since we shipped it."""

    path: Path
    kind: str
    intact: bool


@dataclass(frozen=True)
class Package:
    """An importable package: its path, its version, and the distribution that installed it."""

    version: str | None = None
    distribution: str | None = None
    path: str | None = None


def site_directories() -> list[Path]:
    """The folders in which this Python reads ``.pth`` files."""
    folders = [*site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    by_place: dict[Path, Path] = {}
    for folder in map(Path, folders):
        by_place.setdefault(folder.resolve(), folder)  # a link can give one folder two names
    return list(by_place.values())


def start_files() -> list[StartFile]:
    """Our start-up files in the site directories."""
    return [
        StartFile(folder / name, name.rpartition(".")[2], _sha256(folder / name) == shipped)
        for folder in site_directories()
        for name, shipped in SHIPPED.items()
        if (folder / name).is_file()
    ]


def copies() -> list[Path]:
    """Every folder on the path that holds a ``deepeyes_patch`` package, first the one that is used here.

    It need not be the first of the path: the ``.pth`` line imports the package before Python puts the working
    folder or that of a script there.
    """
    parents: dict[Path, Path] = {}
    for entry in (str(Path(deepeyes_patch.__file__).parents[1]), *sys.path):
        package = Path(entry or ".") / "deepeyes_patch"
        if (package / "__init__.py").is_file():
            parents.setdefault(package.resolve(), package.parent.resolve())
    return list(parents.values())


def damaged_files() -> list[str]:
    """Our files that are missing or have changed since pip installed them, relative to site-packages."""
    try:
        ours = metadata.distribution("deepeyes-patch")
    except metadata.PackageNotFoundError:  # a checkout on the path
        return []
    return [
        name
        for name, digest in _recorded(ours)
        if name.startswith("deepeyes_patch/") and _record_hash(Path(str(ours.locate_file(name)))) != digest
    ]


def package(name: str) -> Package:
    """What is installed under an import name, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # a finder raised, as our own does if the package is damaged
        spec = importlib.machinery.PathFinder.find_spec(name)
    if spec is None:
        return Package()
    folders = list(spec.submodule_search_locations or [])
    folder = Path(folders[0]) if folders else None
    brought_by = _distribution(name, folder)
    return Package(
        version=brought_by.version if brought_by else _version_in(folder),
        distribution=brought_by.metadata["Name"] if brought_by else None,
        path=str(folder) if folder else spec.origin,
    )


def _distribution(name: str, folder: Path | None) -> metadata.Distribution | None:
    """The distribution that brought a package."""
    return None if folder is None else next(release.distributions(name, folder), None)


def _version_in(folder: Path | None) -> str | None:
    """The version of a source tree, from its ``version.py`` or ``_version.py``."""
    for file in ("version.py", "_version.py"):
        if folder is not None and (folder / file).is_file():
            text = (folder / file).read_text(errors="replace")
            if match := re.search(r"^_*version_* *(?:: *str *)?= *['\"]([^'\"]+)", text, re.MULTILINE):
                return match[1]
    return None


def overlaid(sglang: Package, files: Sequence[Path]) -> list[str] | None:
    """The SGLang files out of ``files`` that differ from those in SGLang's wheel.

    ``None`` if that cannot be known: a source tree, or no SGLang.
    """
    if sglang.path is None:
        return None
    brought_by = _distribution("sglang", Path(sglang.path))
    if brought_by is None:
        return None
    names = [file.relative_to(Path(sglang.path).parent).as_posix() for file in files]
    recorded = dict(_recorded(brought_by, names))
    if not recorded:  # an editable installation
        return None
    places = {name: Path(str(brought_by.locate_file(name))) for name in recorded}
    return [name for name, digest in recorded.items() if _record_hash(places[name]) != digest]


def loads_our_plugin(sglang: Package) -> bool:
    """Whether this SGLang loads plugins (0.5.11 and later), and would find our entry point."""
    if sglang.path is None or not (Path(sglang.path) / "srt" / "plugins" / "__init__.py").is_file():
        return False
    plugins = {point.name for point in metadata.entry_points(group="sglang.srt.plugins")}
    if allowed := os.environ.get("SGLANG_PLUGINS"):
        plugins &= {name.strip() for name in allowed.split(",")}
    return "deepeyes_patch" in plugins


def _recorded(distribution: metadata.Distribution, only: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """The (file, hash) pairs of RECORD that have a SHA-256."""
    for line in (distribution.read_text("RECORD") or "").splitlines():
        # RECORD quotes a name that holds a comma. None of the names that we look for holds one.
        name, _, rest = line.partition(",")
        if rest.startswith("sha256=") and (not only or name in only):
            yield name, rest[len("sha256=") :].partition(",")[0]


def _record_hash(path: Path) -> str | None:
    content = _content(path)
    if content is None:
        return None
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _sha256(path: Path) -> str | None:
    content = _content(path)
    return None if content is None else hashlib.sha256(content).hexdigest()


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def cuda_device() -> str | None:
    """The first NVIDIA device, as the kernel driver names it. Only ``--deep`` asks torch."""
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return "NVIDIA device (driver loaded)" if Path("/proc/driver/nvidia/version").exists() else None
