"""Running processes, as psutil lists them, and the records in them.

psutil is imported only when ``status`` runs: SGLang requires it, and this package does not depend on it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepeyes_patch.cli.terminal import CommandError
from deepeyes_patch.observe import record

PROC = Path("/proc")
_LINK = f"/memfd:{record.NAME} (deleted)"
_TRIES = 5  # a record may be read while it is written


@dataclass(frozen=True)
class Process:
    """A process, its parent, its name, and its record (``None``: it has no record)."""

    pid: int
    parent: int
    name: str
    record: dict[str, Any] | None

    @property
    def helper(self) -> str | None:
        """What this process is called, if there is never anything to repair in it."""
        return next((words for pattern, words in _HELPERS.items() if re.search(pattern, self.name)), None)


# Processes of a server in which there is nothing to repair: how to know the command line, and their name.
_HELPERS = {
    r"-c from multiprocessing\.resource_tracker import": "Python's resource tracker",
    r"-c from multiprocessing\.forkserver import": "Python's fork server",
    r"^\S+ \S*/torch/_inductor/compile_worker/": "a compile worker of torch",
    r"^sglang::detokenizer": "SGLang's detokenizer",
}


class Unreadable(Exception):
    """The file descriptors of a process may not be read: it is another user's, or runs in a sandbox."""


def require_means() -> None:
    """Stop if processes cannot be inspected here.

    Raises
    ------
    CommandError
        There is no ``/proc``, or no psutil.
    """
    if not (PROC / "self" / "fd").exists():
        raise CommandError(
            "there is no /proc here to find processes in. Call deepeyes_patch.status() in the process "
            "itself, or look for its line in SGLang's log.",
            3,
        )
    _psutil()


def _psutil() -> Any:
    try:
        import psutil
    except ImportError as error:
        raise CommandError(
            f"{sys.executable} cannot import psutil, which lists processes ({error}). SGLang requires it. "
            f"Use the Python that SGLang runs with, or run: {sys.executable} -m pip install psutil",
            3,
        ) from error
    return psutil


def running() -> dict[int, int]:
    """The parent of each process, by pid. Zombies are left out: they have ended."""
    psutil = _psutil()
    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    processes = [process.info for process in psutil.process_iter(["pid", "ppid", "status"])]
    return {info["pid"]: info["ppid"] for info in processes if info["status"] not in ended}


def family(root: int, parents: dict[int, int]) -> list[int]:
    """``root`` and its descendants, each before its children."""
    children = sorted(pid for pid, parent in parents.items() if parent == root and pid != root)
    return [root, *(pid for child in children for pid in family(child, parents))]


def look_at(pid: int, parent: int) -> Process:
    """Read the name and the record of a process.

    Raises
    ------
    Unreadable
        The process may not be inspected.
    """
    return Process(pid, parent, _name(pid), _record(pid))


def _name(pid: int) -> str:
    """The command line of a process; if it has none, the kernel's name for it."""
    psutil = _psutil()
    try:
        process = psutil.Process(pid)
        line = " ".join(word for word in process.cmdline() if word)
        return line or f"[{process.name()}]"
    except (psutil.Error, OSError):  # it has ended, or may not be looked at
        return "?"


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
                with open(folder / name, "rb") as memory:
                    content = record.read(memory.read(record.SIZE))
                if content is not None:
                    # If another process passed this descriptor on, the record is that process's.
                    return content if content["pid"] == _pid_of_itself(pid) else None
                time.sleep(0.01)
    return None


def _pid_of_itself(pid: int) -> int:
    """The process id that the process itself sees. In a container it differs from the one that we see."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid
