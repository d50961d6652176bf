"""Commands whose output nobody takes: a full disk, a closed pipe, a closed stdout or stderr."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.interpreters import CHECKOUT, clean_environ, held
from tests.unit.test_cli import COMMANDS, cli

# Buffered, Python meets the error when the program ends.
BUFFERING = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
FULL = "deepeyes-patch: cannot write to stdout: No space left on device.\n"


@pytest.fixture
def full() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def written_to(
    stdout: int, *command: str, stderr: int = subprocess.PIPE, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=CHECKOUT,
        env=clean_environ(**environ),
        stdout=stdout,
        stderr=stderr,
        text=True,
        timeout=60,
    )


def command(name: str) -> list[str]:
    """A command that writes a line and finds nothing wrong, without what it needs for its real work."""
    program = (
        "import sys\n"
        "from deepeyes_patch.cli import main, doctor, parity, run, status, verify\n"
        f"{name}.execute = lambda arguments: print('an answer') or 0\n"
        "sys.exit(main.main(sys.argv[1:]))"
    )
    return ["-c", program, name, *(["URL", "--model", "DIR"] if name == "parity" else [])]


@BUFFERING
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk(name: str, unbuffered: str, full: int) -> None:
    done = written_to(full, *command(name), PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (3, FULL)


@BUFFERING
@pytest.mark.parametrize("name", COMMANDS)
def test_a_closed_pipe(name: str, unbuffered: str, unread: int) -> None:
    """The code is that of other programs, which the signal SIGPIPE ends."""
    done = written_to(unread, *command(name), PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (141, "")


@BUFFERING
@pytest.mark.parametrize(
    "arguments",
    [
        *("doctor", "doctor --json", "doctor --report", "status", "status --json", "status --watch 1"),
        *("help", "help doctor", "doctor --help", "--version"),
    ],
)
def test_real_answers(arguments: str, unbuffered: str, full: int, unread: int) -> None:
    line = ["-m", "deepeyes_patch", *arguments.split()]
    done = written_to(full, *line, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (3, FULL)
    done = written_to(unread, *line, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (141, "")


@BUFFERING
def test_a_full_disk_for_stderr(unbuffered: str, full: int) -> None:
    """The exit code stays that of the answer, or of the error."""
    for arguments in (["doctor", "--report"], ["status", "999999999"], ["doctor", "--jsn"], []):
        expected = cli(*arguments)
        done = written_to(
            subprocess.PIPE, "-m", "deepeyes_patch", *arguments, stderr=full, PYTHONUNBUFFERED=unbuffered
        )
        assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout), arguments


@pytest.mark.parametrize(
    ("closed", "arguments", "code", "out", "err"),
    [
        (">&-", "--version", 3, "", "deepeyes-patch: cannot write to stdout: it is closed.\n"),
        (">&-", "run -- true", 0, "", None),
        (">&- 2>&-", "--version", 3, "", ""),
        # Nothing meant for stderr may come out on stdout.
        ("2>&-", "status 999999999", 3, "", ""),
        ("2>&-", "doctor --jsn", 2, "", ""),
        ("2>&-", "", 2, "", ""),
    ],
)
def test_streams_that_are_closed(closed: str, arguments: str, code: int, out: str, err: str | None) -> None:
    line = f'exec "$0" -m deepeyes_patch {arguments} {closed}'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable],
        cwd=CHECKOUT,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (code, out), done
    assert err is None or done.stderr == err


def test_letters_that_the_encoding_lacks() -> None:
    program = (
        "from deepeyes_patch.observe import record, counters\n"
        "record.publish('0.1.0', {'processor': 'patched (x)'}, counters.NAMES)"
    )
    with held(program, "图片") as pid:
        done = cli("status", str(pid), PYTHONIOENCODING="ascii", COLUMNS="500")
    assert (done.returncode, done.stderr) == (0, "")
    assert " \\u56fe\\u7247\n" in done.stdout
