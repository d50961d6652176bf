"""Which SGLang this is: its version, its distribution and its place. For messages and ``doctor`` only."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib import metadata

TESTED = "0.5.3 to 0.5.23, every release"


def version() -> str:
    """The version that the imported ``sglang`` states, or else the version of its distribution.

    From 0.5.7 on, SGLang asks for the version of a distribution named ``sglang``. If there is none (a source
    tree, or a rebuild under another name), it states 0.0.0.dev0.
    """
    stated = str(getattr(sys.modules.get("sglang"), "__version__", "of unknown version"))
    if stated.startswith("0.0.0") or stated == "of unknown version":
        versions = [version for _, version in _names_and_versions(_place())]
        return versions[0] if len(versions) == 1 else stated
    return stated


def description() -> str:
    """Version, distribution and place of the imported SGLang."""
    names = [f"distribution {name} {version}" for name, version in _names_and_versions(_place())]
    return f"SGLang {version()} ({', '.join(names) or 'no distribution: a source tree'}, {_place()})"


def _place() -> str:
    return getattr(sys.modules.get("sglang"), "__file__", None) or "an unknown place"


# Cached: it reads files of every distribution, and every refusal may name the version.
@functools.lru_cache(maxsize=8)
def _names_and_versions(place: str) -> tuple[tuple[str, str], ...]:
    """(name, version) of each distribution that brought the SGLang whose ``__init__.py`` is ``place``."""
    found = distributions("sglang", Path(place).parent)
    return tuple(sorted({(str(one.metadata["Name"]), one.version) for one in found}))


def distributions(package: str, folder: Path) -> Iterator[metadata.Distribution]:
    """The distributions that brought the package in ``folder``. Nothing is imported.

    A distribution with the package's own name comes first, and again among the others. Rebuilds, such as
    sglang-kt, have another name. No distribution brought a source tree that lies before them on the path.
    """
    from importlib import metadata

    for one in metadata.distributions(name=package):
        if _is_beside(one, package, folder) or _is_editable(one, folder):
            yield one
    for one in metadata.distributions():
        if _is_editable(one, folder) or (_is_beside(one, package, folder) and _lists(one, package)):
            yield one


def _is_beside(distribution: metadata.Distribution, package: str, folder: Path) -> bool:
    return Path(str(distribution.locate_file(package))).resolve() == folder.resolve()


def _lists(distribution: metadata.Distribution, package: str) -> bool:
    if package in (distribution.read_text("top_level.txt") or "").split():
        return True
    return f"\n{package}/__init__.py," in "\n" + (distribution.read_text("RECORD") or "")


def _is_editable(distribution: metadata.Distribution, folder: Path) -> bool:
    """Whether pip installed the source tree that holds ``folder`` in editable mode (PEP 610)."""
    text = distribution.read_text("direct_url.json") or ""
    if '"editable": true' not in text:
        return False
    import json
    from urllib.parse import unquote, urlparse

    tree = Path(unquote(urlparse(json.loads(text)["url"]).path)).resolve()
    return folder.resolve().is_relative_to(tree)
