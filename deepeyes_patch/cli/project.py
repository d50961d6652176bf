"""Where the project is, and where pip gets the package. Metadata and documents follow this file."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from urllib.parse import unquote, urlsplit

# PLACEHOLDER: there is no public address yet. Replace this one line. `.invalid` can never be a real domain.
# tests/install/test_release.py refuses to release with it.
ADDRESS = "https://deepeyes-patch.invalid"

# The first release to a package index sets this to True, and runs `python -m tests.docs.install`.
ON_AN_INDEX = False

AUTHOR = "The deepeyes-patch authors"


def has_address() -> bool:
    return not (urlsplit(ADDRESS).hostname or "").endswith(".invalid")


def issues() -> str:
    """Where to report something, in words for the user."""
    return f"{ADDRESS}/issues" if has_address() else "an issue of the project (it has no public address yet)"


def reinstall(python: str = sys.executable, source: str | None = None) -> str:
    """The command that installs this package again.

    ``source``: what pip gets; by default the place from which it installed this package.
    """
    return f"{python} -m pip install --force-reinstall --no-deps {source or _source()}"


def install(python: str) -> str:
    """The command that installs this package into another Python."""
    return f"{python} -m pip install {_source()}"


def _source() -> str:
    """What pip gets: the checkout or file that this installation came from, else the name on the index."""
    if place := _installed_from():
        return shlex.quote(place)
    return "deepeyes-patch" if ON_AN_INDEX else "CHECKOUT  (the folder of deepeyes-patch's sources)"


def _installed_from() -> str | None:
    """The local folder or wheel that pip installed (PEP 610); ``None``: an index, or it cannot be told."""
    try:
        text = metadata.distribution("deepeyes-patch").read_text("direct_url.json")
        url = urlsplit(json.loads(text or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError):
        return None
    return unquote(url.path) if url.scheme == "file" else None
