"""What the package costs a Python process: ``.lab/base/bin/python -m tests.bench.startup``.

Instructions are valgrind's (``--tool=callgrind``), which do not depend on how busy the machine is; wall times
are medians of rounds that take the cases in turn, so that a busy minute hurts all alike. One virtual
environment with wrapt serves the cases; they differ in the start-up files at its root and in the switch.
Byte code is warm and hashes are seeded, so that two runs count alike.

``--processes 1000`` also starts so many short processes in each state, as compile workers and judges do on a
training node, and prints the CPU time of all of them. The states take turns, ten processes at a time.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests import interpreters
from tests.interpreters import CHECKOUT, ON, Interpreter, clean_environ

VALGRIND_SECONDS = 300
NOTHING = "pass"
TOGETHER = 10  # processes before the next state has its turn


@dataclass(frozen=True)
class Case:
    """One program in one state of the environment."""

    name: str
    pth: str | None  # of the file at the root of site-packages; None: there is none
    program: str
    environ: dict[str, str] = field(default_factory=dict)


def cases() -> list[Case]:
    ours = (CHECKOUT / "deepeyes_patch.pth").read_text()
    return [
        Case("absent", None, NOTHING),
        Case("present, no switch set", ours, NOTHING),
        Case("present, DEEPEYES_PATCH=off", ours, NOTHING, {"DEEPEYES_PATCH": "off"}),
        Case("present, on", ours, NOTHING, ON),
        Case("naive (import wrapt in the .pth)", "import wrapt\n", NOTHING),
        Case("import sglang, absent", None, "import sglang"),
        Case("import sglang, no switch set", ours, "import sglang"),
        Case("import wrapt, sglang, no switch set", ours, "import wrapt, sglang"),
        Case("import sglang, on", ours, "import sglang", ON),
    ]


def environment(folder: Path) -> Interpreter:
    """The package without its ``.pth``, its dependencies, and the made-up ``sglang``."""
    created = interpreters.create(folder / "env")
    interpreters.copy_package(created)
    for name in ("deepeyes_patch.pth", "deepeyes_patch.start"):
        (created.site_packages / name).unlink()
    made_up = interpreters.write_sglang(folder / "made-up")
    return Interpreter(created.python, {"PYTHONPATH": str(made_up), "PYTHONHASHSEED": "0"})


def _prepare(interpreter: Interpreter, case: Case) -> None:
    """Place the start-up file, and warm the byte code."""
    pth = interpreter.site_packages / "deepeyes_patch.pth"
    pth.unlink(missing_ok=True)
    if case.pth is not None:
        pth.write_text(case.pth)
    result = interpreter.run("-c", case.program, environ=case.environ)
    assert result.silent(), (case.name, result)


def instructions(interpreter: Interpreter, case: Case) -> int:
    """How many instructions valgrind counts."""
    _prepare(interpreter, case)
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = subprocess.run(
        [*command, str(interpreter.python), "-c", case.program],
        env=clean_environ(**{**interpreter.environ, **case.environ}),
        capture_output=True,
        text=True,
        timeout=VALGRIND_SECONDS,
        check=True,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


def wall_times(interpreter: Interpreter, asked: list[Case], rounds: int) -> list[float]:
    """Median milliseconds of each case."""
    taken: list[list[float]] = [[] for _ in asked]
    for _ in range(rounds):
        for case, times in zip(asked, taken, strict=True):
            _prepare(interpreter, case)
            environ = clean_environ(**{**interpreter.environ, **case.environ})
            start = time.perf_counter()
            subprocess.run([interpreter.python, "-c", case.program], env=environ, check=True)
            times.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(times) for times in taken]


def cpu_seconds(interpreter: Interpreter, asked: list[Case], processes: int) -> list[float]:
    """CPU seconds of so many processes of each case, all together."""
    spent = [0.0 for _ in asked]
    for _ in range(processes // TOGETHER):
        for number, case in enumerate(asked):
            _prepare(interpreter, case)
            environ = clean_environ(**{**interpreter.environ, **case.environ})
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            for _ in range(TOGETHER):
                subprocess.run([interpreter.python, "-c", case.program], env=environ, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent[number] += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="of the wall times")
    parser.add_argument("--processes", type=int, default=0, help="short ones, to sum up their CPU time")
    chosen = parser.parse_args()
    rounds = chosen.rounds
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not on the path: apt-get install valgrind")
    asked = cases()
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        interpreter = environment(Path(folder))
        counts = [instructions(interpreter, case) for case in asked]
        times = wall_times(interpreter, asked, rounds)
        short = [case for case in asked if case.program == NOTHING and "wrapt" not in case.name]
        spent = cpu_seconds(interpreter, short, chosen.processes) if chosen.processes else []
    print(f"Python {sys.version.split()[0]}, {rounds} rounds; more than: the first of its group")
    print("| case | million instructions | more than absent | median ms |\n|---|---|---|---|")
    with_sglang = [case.program != NOTHING for case in asked]
    for case, count, milliseconds in zip(asked, counts, times, strict=True):
        base = counts[with_sglang.index(case.program != NOTHING)]
        print(f"| {case.name} | {count / 1e6:.2f} | {count / base - 1:+.2%} | {milliseconds:.1f} |")
    if spent:
        print(f"\n| {chosen.processes} processes | CPU seconds | more than absent |\n|---|---|---|")
    for case, seconds in zip(short, spent, strict=False):
        print(f"| {case.name} | {seconds:.2f} | {seconds / spent[0] - 1:+.1%} |")


if __name__ == "__main__":
    main()
