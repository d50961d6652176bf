"""The packages that a command needs, and how to get those that are missing."""

from __future__ import annotations

import shlex
import sys

from deepeyes_patch.cli import installation
from deepeyes_patch.cli.terminal import CommandError

_DISTRIBUTIONS = {"PIL": "pillow"}
# SGLang requires the other packages, in the versions that it works with.
_BRINGS_ALL = "sglang"
# For a package that another package of SGLang's cannot import.
CHECK = f"`{sys.executable} -m pip check` lists packages that are missing or do not fit each other."


def require(*modules: str) -> None:
    """Stop if this Python lacks one of the packages. None of them is imported.

    Raises
    ------
    CommandError
        The message names those that are missing, and the command that installs them.
    """
    missing = [name for name in modules if installation.package(name).path is None]
    if missing:
        raise CommandError(f"{sys.executable} lacks {', '.join(missing)}. {remedy(missing)}", 3)


def remedy(missing: list[str]) -> str:
    """What to do about missing packages."""
    wanted = [_BRINGS_ALL] if _BRINGS_ALL in missing else [_DISTRIBUTIONS.get(name, name) for name in missing]
    return (
        f"Use the Python that SGLang runs with, or run: {sys.executable} -m pip install {shlex.join(wanted)}"
    )
