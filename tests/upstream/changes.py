"""Applies the changes in ``docs/upstream`` to a copy of the installed release.

A change is a patch against SGLang's repository: ``python/sglang/...`` and new files below ``test/``.
`applied` makes a copy in which ``sglang`` is changed, and puts the new tests beside it.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.lab import altered
from tests.lab.environments import CHECKOUT

FOLDER = CHECKOUT / "docs" / "upstream"
# The release that the changes are made for. They are sent to SGLang's main branch.
RELEASE = "0.5.23"
EXPANDED = "expanded-input-ids"
PATCH = "change.patch"
_PACKAGE = "python/sglang/"
_FILE = re.compile(r"^\+\+\+ b/(\S+)$", re.MULTILINE)
GIT_SECONDS = 60


def patch(name: str) -> Path:
    return FOLDER / name / PATCH


def names() -> list[str]:
    """Every change that has a patch."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{PATCH}"))


def files(name: str) -> list[str]:
    """The files of SGLang's repository that a change touches."""
    return _FILE.findall(patch(name).read_text(encoding="utf-8"))


def applied(folder: Path, *chosen: str) -> Path:
    """A copy of the installed SGLang in ``folder`` with these changes; the folder.

    New tests of a change lie in ``folder/registered``. Raises ``AssertionError`` with git's words if a
    change does not apply.
    """
    touched = [file for name in chosen for file in files(name)]
    inside = {file.removeprefix(_PACKAGE): str for file in touched if file.startswith(_PACKAGE)}
    altered.copy(folder, inside)  # unchanged, but files of their own, not links into the release
    for name in chosen:
        # -p2: "a/python/sglang/..." is "sglang/..." here, and "a/test/registered/..." "registered/...".
        # Without the ceiling, git would take a folder below a checkout for a part of that repository.
        done = subprocess.run(
            ["git", "apply", "-p2", "--whitespace=error-all", str(patch(name))],
            cwd=folder,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{name} does not apply to this release:\n{done.stderr}"
    return folder


def unit_tests(name: str) -> list[str]:
    """The new tests of a change, relative to the folder of `applied`."""
    return [file.removeprefix("test/") for file in files(name) if file.startswith("test/registered/unit/")]


def added_lines(name: str) -> int:
    """How many lines a change adds to the package, tests apart."""
    added = 0
    for part in patch(name).read_text(encoding="utf-8").split("\ndiff --git ")[1:]:
        if part.startswith(f"a/{_PACKAGE}"):
            added += sum(line.startswith("+") and not line.startswith("+++") for line in part.splitlines())
    return added
