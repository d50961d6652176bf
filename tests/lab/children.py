"""Runs a module of ours as a child of its own session, and leaves nothing of it behind. Standard library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab import signals
from tests.lab.environments import CHECKOUT

STOP_SECONDS = 30
TAIL = 4000


class ChildFailed(RuntimeError):
    """It ended with an error, or not in time; the message ends with what it said."""


def run(
    command: Sequence[str | Path],
    log: Path,
    seconds: float,
    env: Mapping[str, str | None] | None = None,
    quiet: bool = False,
    cwd: Path = CHECKOUT,
) -> None:
    """Run ``command`` in ``cwd``; its errors go to ``log``, with ``quiet`` its output too.

    ``env`` is added to this process's environment (None removes a variable). Interrupted in any way, the
    child is told to end, so that it can stop a server of its own.

    Raises
    ------
    ChildFailed
        The child ended with another code than 0, or not within ``seconds``.
    """
    variables = {**os.environ, **(env or {})}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env={name: value for name, value in variables.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=errors if quiet else None,
            stderr=errors,
            # Ctrl-C reaches this process alone, which then ends the other one, once.
            start_new_session=True,
        )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"{_tail(log)}\nnot done after {seconds:.0f} s") from None
    finally:
        with signals.held():
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
    if process.returncode != 0:
        raise ChildFailed(f"{_tail(log)}\nended with {process.returncode}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-TAIL:]
