"""A test run that is told to end, and told again while it stops its server, leaves no server behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interpreters import CHECKOUT
from tests.lab import cputime

SECONDS = 30

# Stands for a server: it does not end when it is asked to, so stopping it takes a while.
STUBBORN = f"""#!{sys.executable}
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
time.sleep({10 * SECONDS})
"""

# As tests/e2e/conftest.py has it: the first signal leaves the test as KeyboardInterrupt.
TESTS = """
import pathlib, signal, sys, time
from tests.lab import flags, server
signal.signal(signal.SIGTERM, signal.default_int_handler)
flags.server_args = dict
server.STOP_SECONDS = 2
with server.started(pathlib.Path("no-model"), None, [], None, pathlib.Path(sys.argv[1])):
    time.sleep(600)
"""


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def appears(path: Path) -> bool:
    deadline = time.monotonic() + SECONDS
    while not (path.exists() and path.read_text()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_interrupt_stopping(again: signal.Signals, tmp_path: Path) -> None:
    stubborn, pid_file = tmp_path / "stubborn", tmp_path / "pid"
    stubborn.write_text(STUBBORN)
    stubborn.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", TESTS, stubborn],
        cwd=CHECKOUT,
        env={**os.environ, "PID_FILE": str(pid_file), cputime.LOG: ""},
        stderr=subprocess.PIPE,
        text=True,
    ) as tests:
        assert appears(pid_file), "the stand-in has not started"
        pid = int(pid_file.read_text())
        try:
            tests.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + SECONDS
            while tests.poll() is None and time.monotonic() < deadline:
                time.sleep(0.3)
                tests.send_signal(again)
            left = runs(pid)
        finally:
            tests.kill()
            if runs(pid):
                os.kill(pid, signal.SIGKILL)
        assert not left
        assert tests.stderr is not None
        assert "KeyboardInterrupt" in tests.stderr.read(), "the signal arrives, after the server is gone"
