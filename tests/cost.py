"""``make cost``: CPU seconds and wall time of each suite, and of each start of a server, as Markdown.

``python3 -m tests.cost --speed=test SUITE ...`` runs ``make SUITE`` one after the other. CPU seconds are user
and system time of all processes that a suite starts. They can be compared on a busy machine; wall times
cannot. `tests.nightly` and `tests.coverage` use `together`. Linux and standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from tests import speeds
from tests.lab import cputime
from tests.lab.environments import CHECKOUT

LOGS = CHECKOUT / ".lab" / "suites"
MAKEFILE = CHECKOUT / "Makefile"
ORPHAN_SECONDS = 15
STOP_SECONDS = 60  # pytest stops its servers
_PR_SET_CHILD_SUBREAPER = 36  # of <linux/prctl.h>
# A `make` above has set them: with its jobserver, it would have to agree to each job here.
_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
# pytest's closing line, with -q and without
_CLOSING = re.compile(r"^=* ?((?:\d+ \w+(?:, )?)+ in [\d.]+s)", re.MULTILINE)
_COUNT = re.compile(r"(\d+) (\w+)")


@dataclass(frozen=True)
class Ended:
    """How a suite ended. ``cpu`` and ``wall`` in seconds; ``said`` is the last line that matters."""

    suite: str
    code: int
    cpu: float
    wall: float
    said: str
    servers: list[dict[str, Any]] = field(default_factory=list)
    speed: str = speeds.NIGHTLY

    @property
    def tests(self) -> dict[str, int]:
        """What pytest counted, such as ``{"passed": 12}``; empty for other suites."""
        if not _CLOSING.search(self.said):
            return {}
        return {word: int(count) for count, word in _COUNT.findall(self.said.rpartition(" in ")[0])}


def log_of(suite: str, speed: str) -> Path:
    """What a suite has printed."""
    return LOGS / f"{suite}-{speed}.log"


# A suite, and the speed at which it runs.
Part = tuple[str, str]


def together(
    parts: Sequence[Part],
    jobs: int,
    started: Callable[[Part], None] = lambda part: None,
    env: Callable[[Part], Mapping[str, str]] = lambda part: {},
) -> Iterator[Ended]:
    """Run ``make SUITE`` for each, so many at the same time; yield each as it ends.

    ``env`` tells what a part gets in its environment. Closing the generator ends what runs, so that servers
    are stopped.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    waiting, running = list(parts), dict[Part, subprocess.Popen[bytes]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                part = waiting.pop(0)
                started(part)
                running[part] = _start(*part, env(part))
            for part, process in list(running.items()):
                if process.poll() is not None:
                    del running[part]
                    yield _ended(*part)
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2 * STOP_SECONDS)


def _start(suite: str, speed: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    log = log_of(suite, speed)
    for old in (log, _result(log), _servers(log)):
        old.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.cost", "--inside", str(MAKEFILE), suite, f"--speed={speed}"]
    command += ["--result", str(_result(log))]
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env={**os.environ, **env, cputime.LOG: str(_servers(log))},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others
        )


def _result(log: Path) -> Path:
    return log.with_suffix(".json")


def _servers(log: Path) -> Path:
    return log.with_suffix(".servers")


def _ended(suite: str, speed: str) -> Ended:
    log = log_of(suite, speed)
    servers = []
    if _servers(log).exists():
        servers = [json.loads(line) for line in _servers(log).read_text().splitlines()]
    said = last_words(log.read_text(errors="replace"))
    if not _result(log).exists():  # it was killed
        return Ended(suite, 1, 0.0, 0.0, said, servers, speed)
    result = json.loads(_result(log).read_text())
    return Ended(suite, said=said, servers=servers, speed=speed, **result)


def last_words(log: str) -> str:
    """pytest's closing line, or else the last line that is not make's."""
    if found := _CLOSING.findall(log):
        return str(found[-1])
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("make")]
    return lines[-1] if lines else ""


def _inside(makefile: Path, suite: str, speed: str, result: Path) -> int:
    """Run one suite, and write what it took.

    A server's processes outlive their parents when they are stopped. As the reaper of all that is below it,
    this process gets their CPU seconds, too. Told to end, it tells them all to end.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    begin = time.monotonic()
    env = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    command = ["make", "--no-print-directory", "-f", str(makefile), f"SPEED={speed}", suite]
    told_to_end = False

    def end(number: int, frame: Any) -> None:
        nonlocal told_to_end
        told_to_end = True
        _tell_children(signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    code = subprocess.Popen(command, cwd=makefile.parent, env=env).wait()
    deadline = time.monotonic() + (STOP_SECONDS if told_to_end else ORPHAN_SECONDS)
    while _children() and time.monotonic() < deadline:
        if told_to_end:
            _tell_children(signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.05)
    if told_to_end:
        _tell_children(signal.SIGKILL)
    took = {"code": code, "cpu": cputime.of_ended_children(), "wall": time.monotonic() - begin}
    result.write_text(json.dumps(took))
    return code


_told: set[tuple[int, int]] = set()


def _tell_children(number: int) -> None:
    """Each child once: pytest, told twice, would be told while it stops its servers."""
    for pid in _children():
        if (pid, number) not in _told:
            _told.add((pid, number))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _children() -> list[int]:
    own = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    return [int(pid) for pid in Path(own).read_text().split()]


def table(ended: Sequence[Ended]) -> Iterator[str]:
    yield "| suite | tests | CPU seconds | of these, servers | starts of a server |"
    yield "|---|---|---|---|---|"
    for one in ended:
        tests = ", ".join(f"{count} {word}" for word, count in one.tests.items() if word != "deselected")
        servers = sum(server["total"] for server in one.servers)
        starts = len(one.servers)
        yield f"| `{one.suite}` | {tests or '-'} | {one.cpu:.0f} | {servers:.0f} | {starts} |"
    cpu = sum(one.cpu for one in ended)
    servers = [server for one in ended for server in one.servers]
    spent = sum(server["total"] for server in servers)
    tests = sum(count for one in ended for word, count in one.tests.items() if word in ("passed", "failed"))
    yield f"| all | {tests} | {cpu:.0f} | {spent:.0f} | {len(servers)} |"


def starts(ended: Sequence[Ended]) -> Iterator[str]:
    """CPU seconds from the start of a server to its first healthy answer, by release."""
    yield "| suite | servers started | CPU seconds each, median | most | starts that failed | median |"
    yield "|---|---|---|---|---|---|"
    for one in ended:
        healthy = [server["start"] for server in one.servers if server["start"] is not None]
        refused = [server["total"] for server in one.servers if server["start"] is None]
        if healthy or refused:
            yield (
                f"| `{one.suite}` | {len(healthy)} | {_median(healthy)} | {max(healthy, default=0):.0f} "
                f"| {len(refused)} | {_median(refused)} |"
            )


def _median(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.0f}" if seconds else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--speed", choices=speeds.SPEEDS, default=speeds.TEST)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--inside", type=Path, metavar="MAKEFILE", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        (suite,) = given.suites
        return _inside(given.inside, suite, given.speed, given.result)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ended = []
    begin = time.monotonic()
    for one in together([(suite, given.speed) for suite in given.suites], given.jobs):
        print(f"{one.suite}: {one.cpu:.0f} CPU seconds, {one.wall:.0f} s; {one.said}", flush=True)
        ended.append(one)
    print(f"\n{time.monotonic() - begin:.0f} s\n")
    print(*table(ended), "", *starts(ended), sep="\n")
    return max((one.code for one in ended), default=0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted")
        sys.exit(130)
