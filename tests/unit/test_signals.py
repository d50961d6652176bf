"""A command that is told to end leaves no children and no files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interpreters import CHECKOUT, clean_environ

# `verify` and `doctor --deep` with children that sleep, and write their pids.
_SLEEPING = """
import subprocess, sys
from deepeyes_patch.cli import main, needs, sides
real = subprocess.Popen

def sleeping(command, **options):
    is_real = "deepeyes_patch.verification.child" not in command and "deepeyes_patch.cli.deep" not in command
    if is_real:
        return real(command, **options)
    child = real([sys.executable, "-c", "import time; time.sleep(60)"], **options)
    print(child.pid, file=sys.__stderr__, flush=True)
    return child

subprocess.Popen = sleeping
needs.require = lambda *modules: None
sys.exit(main.main(sys.argv[1:]))
"""


@contextlib.contextmanager
def inherited(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    """What a command that is started in here begins with, whatever these tests were started with."""
    old = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, old)


def started(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """A command that waits for a child, and the child's pid."""
    command = subprocess.Popen(
        [sys.executable, "-c", _SLEEPING, *arguments],
        cwd=CHECKOUT,
        env=clean_environ(TMPDIR=str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stderr is not None
    child = int(command.stderr.readline())
    time.sleep(0.3)  # until it waits for the child
    return command, child


@pytest.mark.parametrize("arguments", [["verify"], ["doctor", "--deep"]], ids=["verify", "deep"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_it_takes_its_child_along(number: signal.Signals, arguments: list[str], tmp_path: Path) -> None:
    with inherited(number, signal.SIG_DFL):
        command, child = started(tmp_path, *arguments)
    command.send_signal(number)
    assert command.communicate(timeout=60) == ("", "")
    assert command.returncode == 128 + number
    assert not Path(f"/proc/{child}").exists()
    assert os.listdir(tmp_path) == []


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """As ``nohup`` has it."""
    with inherited(signal.SIGHUP, signal.SIG_IGN):
        command, child = started(tmp_path, "verify")
    command.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert command.poll() is None
    command.send_signal(signal.SIGTERM)
    command.communicate(timeout=60)
    assert command.returncode == 128 + signal.SIGTERM
    assert not Path(f"/proc/{child}").exists()
