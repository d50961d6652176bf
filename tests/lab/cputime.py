"""CPU seconds of processes, and a log of what each server took. Linux, standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Names a file. Each server that the lab starts adds one line of JSON to it when it is stopped.
LOG = "LAB_SERVER_COSTS"

_TICKS = os.sysconf("SC_CLK_TCK")


def of(pids: Iterable[int]) -> float:
    """CPU seconds of running processes, with those of their children that have ended."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            # The command, in parentheses, may hold spaces and parentheses itself.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / _TICKS


def of_ended_children() -> float:
    """CPU seconds of all children of this process that have ended, with those of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def log(**entry: Any) -> None:
    """Add a line to the log, if the environment names one."""
    if path := os.environ.get(LOG):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
