"""Starts real SGLang servers on the CPU, and makes sure that none outlives its test."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import cputime, flags, installed, signals

START_SECONDS = 420  # four processes import SGLang on two cores; a dead server is noticed at once
STOP_SECONDS = 10
TAIL = 6000  # characters of the log that an error message shows
# Compiling for the first request would take longer than all requests of a test, and threads that wait for
# each other on few busy cores make a forward pass four times as dear.
QUICK = {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}


class ServerFailed(RuntimeError):
    """The server died or was not healthy in time; the message ends with its log."""


@dataclass
class Server:
    """A running server. ``process`` leads a session of its own."""

    url: str
    log_path: Path
    process: subprocess.Popen[bytes]
    start_seconds: float | None = None  # CPU seconds until it was healthy

    @property
    def pid(self) -> int:
        return self.process.pid

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")


@contextlib.contextmanager
def serve(
    model_dir: Path,
    *,
    env: Mapping[str, str | None] | None = None,
    args: Sequence[str] = (),
    log_path: Path | None = None,
    start_seconds: float = START_SECONDS,
    python: Path | None = None,
    launcher: Sequence[str | Path] = (),
) -> Iterator[Server]:
    """A healthy server of the running environment's release, stopped at the end.

    ``env`` is added to this process's environment (None removes a variable); ``args`` are further
    command-line flags. The log goes to ``log_path`` or to a temporary file. ``python`` is another
    environment's interpreter, with the same release. ``launcher`` goes before the command, and replaces
    itself by it.
    """
    with started(model_dir, env, args, log_path, python, launcher) as server:
        deadline = time.monotonic() + start_seconds
        while not _healthy(server.url):
            if server.process.poll() is not None:
                raise ServerFailed(f"the server ended with {server.process.returncode}\n{_tail(server)}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"not healthy after {start_seconds:.0f} s\n{_tail(server)}")
            time.sleep(0.3)
        server.start_seconds = cputime.of(_pids(server.process.pid))
        yield server


def ends(server: Server, seconds: float) -> float | None:
    """Tell a server to end (SIGTERM, as an operator does): the seconds that it took; None: it did not end."""
    begin = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    try:
        server.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    return time.monotonic() - begin


def expect_failure(
    model_dir: Path,
    *,
    env: Mapping[str, str | None] | None = None,
    args: Sequence[str] = (),
    log_path: Path | None = None,
    start_seconds: float = START_SECONDS,
    python: Path | None = None,
) -> tuple[int, str]:
    """Start a server that must refuse to; its exit code and its whole log.

    Raises `ServerFailed` if it becomes healthy, or does neither in time.
    """
    with started(model_dir, env, args, log_path, python) as server:
        deadline = time.monotonic() + start_seconds
        while server.process.poll() is None:
            if _healthy(server.url):
                raise ServerFailed(f"the server started but should have refused\n{_tail(server)}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"still starting after {start_seconds:.0f} s\n{_tail(server)}")
            time.sleep(0.3)
        return server.process.returncode, server.log_text()


def tensor_parallel(size: int) -> tuple[list[str], dict[str, str]]:
    """Flags and environment for tensor parallelism on a CPU, where gloo has to serve."""
    args = ["--tp", str(size), "--disable-custom-all-reduce"]
    # NCCL is turned off where its library cannot be loaded.
    return args, {**_one_core_each(size), "SGLANG_NCCL_SO_PATH": "/nowhere/libnccl.so"}


def data_parallel(size: int) -> tuple[list[str], dict[str, str]]:
    """Flags and environment for replicas on a CPU."""
    binding = installed.sources("sglang.srt.utils.numa_utils")
    # Where cores are bound there, those of all replicas are named; elsewhere those of one are, or none.
    together = any("def init_threads_binding" in path.read_text() for path in binding)
    return ["--dp", str(size)], _one_core_each(size) if together else {}


def _one_core_each(ranks: int) -> dict[str, str]:
    """More ranks than cores share them."""
    cores = os.cpu_count() or 1
    return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(rank % cores) for rank in range(ranks))}


@contextlib.contextmanager
def started(
    model_dir: Path,
    env: Mapping[str, str | None] | None,
    args: Sequence[str],
    log_path: Path | None,
    python: Path | None = None,
    launcher: Sequence[str | Path] = (),
) -> Iterator[Server]:
    port = free_port()
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    with contextlib.ExitStack() as stack:
        if log_path is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lab-server-"))
            log_path = Path(folder) / "server.log"
        command = [
            *map(str, launcher),
            *(str(python or sys.executable), "-m", "sglang.launch_server", "--model-path", str(model_dir)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *flags.as_flags(flags.server_args()),
            *args,
        ]
        process: subprocess.Popen[bytes] | None = None
        server: Server | None = None
        before = cputime.of_ended_children()
        try:
            # A signal that came between the start and our knowing of it would leave a server behind.
            with log_path.open("wb") as log, signals.held():
                # Not a pipe: whoever reads one waits for the last child that holds it.
                process = subprocess.Popen(
                    command,
                    # `python -m` puts the working folder first on the path: there the checkout's
                    # sources would hide the installed package.
                    cwd=log_path.parent,
                    env=_environment(env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            server = Server(f"http://127.0.0.1:{port}", log_path, process)
            yield server
        finally:
            # Whoever ends the tests may do so twice, as a CI does that loses its patience.
            with signals.held():
                if process is not None:
                    running = cputime.of(_pids(process.pid))
                    _stop(process)
                    cputime.log(
                        test=test,
                        flags=command,
                        start=server.start_seconds if server else None,
                        total=running or cputime.of_ended_children() - before,
                    )


def _pids(root: int) -> list[int]:
    return [pid for pid, _ in _descendants(root)]


def _environment(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    merged: dict[str, str | None] = {**os.environ, **flags.ENVIRONMENT, **QUICK, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and everything it started, including what left its process group."""
    family = _descendants(process.pid)
    for how, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        # The leader may be gone while its group lives on.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        family |= _descendants(process.pid)
        for pid, started in family:
            if _start_time(pid) == started:  # the id still names the process we mean
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            process.poll()
            if not any(_start_time(pid) == started for pid, started in family) and not _group(process.pid):
                return
            time.sleep(0.05)
    raise ServerFailed(f"processes of server {process.pid} survived SIGKILL")


def _processes() -> Iterator[tuple[int, int, int, str]]:
    """(pid, parent, group, start time) of everything that runs; zombies are over."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The command, in parentheses, may hold spaces and parentheses itself.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    yield int(entry.name), int(fields[1]), int(fields[2]), fields[19]


def _descendants(root: int) -> set[tuple[int, str]]:
    """(pid, start time) of a process and its children's children."""
    running = list(_processes())
    found = {root}
    while more := {pid for pid, parent, *_ in running if parent in found and pid not in found}:
        found |= more
    return {(pid, started) for pid, _, _, started in running if pid in found}


def _group(leader: int) -> set[int]:
    return {pid for pid, _, group, _ in _processes() if group == leader}


def _start_time(pid: int) -> str | None:
    return next((started for other, _, _, started in _processes() if other == pid), None)


def free_port() -> int:
    # Below the ephemeral range, so that no outgoing connection takes it while the server imports,
    # and with room above: releases derive further ports from it (gRPC: + 10000).
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerFailed("no free port found")


def _healthy(url: str) -> bool:
    # No proxy of this machine stands between us and 127.0.0.1.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(server: Server) -> str:
    return server.log_text()[-TAIL:]
