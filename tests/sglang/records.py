"""The record of this process, read as another process reads it."""

from __future__ import annotations

import os

from deepeyes_patch.cli import processes


def counts() -> dict[str, int]:
    """What this process has counted since the repairs were installed, without the zeros."""
    kept = processes.look_at(os.getpid(), os.getppid()).record
    assert kept is not None
    return {name: count for name, count in kept["counts"].items() if count}
