"""A copy of the installed SGLang with a few files edited, made of links: cheap enough for one test.

Put the folder first on ``PYTHONPATH`` of a child interpreter. The version and the distribution that the
copy reports stay those of the release, as with a file edited in place.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

Edit = Callable[[str], str]


def replacing(old: str, new: str) -> Edit:
    """An edit that fails where there is nothing to replace."""

    def edit(source: str) -> str:
        assert old in source, f"{old!r} is not in this release's file"
        return source.replace(old, new)

    return edit


def copy(folder: Path, edits: Mapping[str, Edit]) -> Path:
    """Make the copy in ``folder`` and return ``folder``.

    ``edits`` maps a file, relative to the package (``srt/managers/tokenizer_manager.py``), to what is
    done to its text.
    """
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(next(iter(spec.submodule_search_locations)))
    _link(package, folder / "sglang", {Path(name): edit for name, edit in edits.items()})
    return folder


def _link(source: Path, target: Path, edits: Mapping[Path, Edit]) -> None:
    target.mkdir(parents=True)
    for entry in source.iterdir():
        below = {path.relative_to(entry.name): e for path, e in edits.items() if path.parts[0] == entry.name}
        if entry.name == "__pycache__":  # a child would write the edited files' bytecode into it
            continue
        if Path() in below:
            (target / entry.name).write_text(below[Path()](entry.read_text()))
        elif below:
            _link(entry, target / entry.name, below)
        else:
            (target / entry.name).symlink_to(entry)
