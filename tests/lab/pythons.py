"""Finds Python interpreters on this machine. Standard library only."""

from __future__ import annotations

import shutil
import subprocess
import sys


def find(version: str) -> str | None:
    """An interpreter of that version ("3.12"): this one, one on the path, or one that pyenv keeps."""
    if version == "{}.{}".format(*sys.version_info[:2]):
        # Inside a virtual environment this is the one it was made from: `venv` in a `venv` would otherwise
        # tie the new environment to a checkout.
        return getattr(sys, "_base_executable", sys.executable)
    on_path = shutil.which(f"python{version}")
    candidates = [on_path] if on_path else []
    if pyenv := shutil.which("pyenv"):  # its shims on the path run only what is switched on
        for name in _said_by(pyenv, "versions", "--bare").split():
            if name.startswith(f"{version}."):
                candidates.append(f"{_said_by(pyenv, 'prefix', name)}/bin/python")
    question = "import sys; print('{}.{}'.format(*sys.version_info[:2]))"
    return next((python for python in candidates if _said_by(python, "-c", question) == version), None)


def _said_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
