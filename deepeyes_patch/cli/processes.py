"""Running processes and the records in them, out of ``/proc``."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepeyes_patch.observe import record

PROC = Path("/proc")
_LINK = f"/memfd:{record.NAME} (deleted)"
_TRIES = 5  # a record may be read while it is written


@dataclass(frozen=True)
class Process:
    """A process, its parent, what it is called, and the record in it (``None``: it has none)."""

    pid: int
    parent: int
    name: str
    record: dict[str, Any] | None


class Unreadable(Exception):
    """A process of another user, or in a sandbox: its descriptors may not be looked at."""


def available() -> bool:
    return (PROC / "self" / "fd").exists()


def running() -> dict[int, int]:
    """The parent of each process, by pid; zombies are over."""
    found = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                # The command, in parentheses, may hold blanks and parentheses itself.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    found[int(entry.name)] = int(fields[1])
    return found


def family(root: int, parents: dict[int, int]) -> list[int]:
    """``root`` and its descendants, each before its children."""
    children = sorted(pid for pid, parent in parents.items() if parent == root and pid != root)
    return [root, *(pid for child in children for pid in family(child, parents))]


def look_at(pid: int, parent: int) -> Process:
    """
    Raises
    ------
    Unreadable
        It may not be looked at.
    """
    return Process(pid, parent, _name(pid), _record(pid))


def _name(pid: int) -> str:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        comm = (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"
    line = " ".join(word for word in words if word)
    return line or f"[{comm}]"


def _record(pid: int) -> dict[str, Any] | None:
    folder = PROC / str(pid) / "fd"
    try:
        names = os.listdir(folder)
    except PermissionError as error:
        raise Unreadable(str(error)) from error
    except OSError:  # it has ended
        return None
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(folder / name) != _LINK:
                continue
            for _ in range(_TRIES):
                with open(folder / name, "rb") as held:
                    found = record.read(held.read(record.SIZE))
                if found is not None:
                    # A descriptor that was handed over by hand is another process's record.
                    return found if found["pid"] == _own_pid(pid) else None
                time.sleep(0.01)
    return None


def _own_pid(pid: int) -> int:
    """The process id as the process itself knows it, in a container another than ours."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid
