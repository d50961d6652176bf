"""``deepeyes-patch status``: what is patched in running processes, and what they have served."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from deepeyes_patch import __version__
from deepeyes_patch.cli import processes, project, terminal, usage
from deepeyes_patch.cli.output import takes_codes
from deepeyes_patch.cli.processes import Process
from deepeyes_patch.observe import counters

_EXAMPLES = """
deepeyes-patch status          every process of yours that has it live
deepeyes-patch status 4242     a server and its descendants, live or not
deepeyes-patch status --watch 4242     again every two seconds
deepeyes-patch status --json 4242
"""
_AGAIN = 2.0  # seconds between two looks
_CLEAR = "\x1b[H\x1b[2J"
_INDENT = " " * 9


def add(commands: Any) -> None:
    parser = terminal.add_command(
        commands, "status", "show what is patched in running processes, and what they have served", _EXAMPLES
    )
    parser.add_argument(
        "pid",
        nargs="?",
        metavar="PID",
        type=usage.whole("a process id"),
        help="a process; its descendants are shown too (default: all of yours)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=usage.seconds(0.1, 86400),
        const=_AGAIN,
        help=f"show it again after so many seconds (default: {_AGAIN:g}), until Ctrl-C",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    processes.require_means()
    code = _show(arguments)
    if arguments.watch is not None:
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                sys.stdout.flush()
                time.sleep(arguments.watch)
                print(_CLEAR if takes_codes(sys.stdout) else "\n", end="")
                code = _show(arguments)
    return code


def _show(arguments: argparse.Namespace) -> int:
    """Look at the processes once, and print what was seen."""
    shown = _all_live() if arguments.pid is None else _with_descendants(arguments.pid)
    live = [process for process in shown if process.record is not None]
    failed = [process for process in live if _failures(process)]
    ok = bool(live) and not failed
    if arguments.json:
        terminal.print_json("status", ok, processes=[_as_json(process) for process in shown])
    else:
        _print(shown, arguments.pid)
    return 0 if ok else 1


def _all_live() -> list[Process]:
    live = []
    for pid, parent in sorted(processes.running().items()):
        try:
            process = processes.look_at(pid, parent)
        except processes.Unreadable:
            continue
        if process.record is not None:
            live.append(process)
    return live


def _with_descendants(pid: int) -> list[Process]:
    parents = processes.running()
    if pid not in parents:
        raise terminal.CommandError(
            f"no process {pid} is running here. `deepeyes-patch status` lists those that have it live; for "
            f"one inside a container, ask there.",
            3,
        )
    readable = []
    for member in processes.family(pid, parents):
        try:
            readable.append(processes.look_at(member, parents[member]))
        except processes.Unreadable as error:
            if member == pid:
                raise terminal.CommandError(
                    f"process {pid} may not be looked at ({error}). Ask as the user that it runs as, or as "
                    f"root.",
                    3,
                ) from error
    return readable


def _failures(process: Process) -> dict[str, str]:
    repairs = (process.record or {}).get("repairs", {})
    return {name: state for name, state in repairs.items() if state.startswith("failed")}


def _counts(process: Process) -> dict[str, int]:
    counts: dict[str, int] = (process.record or {}).get("counts", {})
    return counts


def _tally(process: Process) -> tuple[int, int, dict[str, int]]:
    counts = _counts(process)
    refused = {
        name.partition(":")[2]: count
        for name, count in counts.items()
        if count and name.startswith(f"{counters.REFUSED}:")
    }
    return counts.get(counters.RESTORED, 0), counts.get(counters.PASSED, 0), refused


def _as_json(process: Process) -> dict[str, Any]:
    restored, passed, refused = _tally(process)
    record = process.record or {}
    return {
        "pid": process.pid,
        "parent": process.parent,
        "name": process.name,
        "live": process.record is not None,
        "helper": process.helper,
        "version": record.get("version"),
        "sglang": record.get("sglang"),
        "repairs": record.get("repairs", {}),
        "restored": restored,
        "passed": passed,
        "refused": refused,
        "not_fetched": _counts(process).get(counters.NOT_FETCHED, 0),
        "unknown_path": _counts(process).get(counters.UNKNOWN_PATH, 0),
    }


def _print(shown: list[Process], pid: int | None) -> None:
    live = [process for process in shown if process.record is not None]
    if not live:
        where = "in any process that you may look at" if pid is None else f"in {pid} or its descendants"
        print(terminal.wrapped(f"deepeyes-patch is not live {where}."))
        print(terminal.wrapped("What to do: `deepeyes-patch doctor` says whether the installation and the "))
        print(terminal.wrapped("switch are right. A process that has not imported sglang yet has no record."))
        return
    rows = [["PID", "RESTORED", "PASSED", "REFUSED", "PROCESS"]]
    for process in shown:
        restored, passed, refused = _tally(process)
        counts = [str(restored), str(passed), str(sum(refused.values()))] if process.record else ["-"] * 3
        name = process.helper or terminal.printable(_short(process.name))
        rows.append([str(process.pid), *counts, name])
    room = terminal.columns() - 2
    lines = terminal.table(rows, right={0, 1, 2, 3})
    print(terminal.colour(lines[0], "bold"))
    for process, line in zip(shown, lines[1:], strict=True):
        print(terminal.cut(line, room))
        for words, *colours in _details(process):
            indented = terminal.wrapped(terminal.printable(words), _INDENT, width=room)
            print(terminal.colour(indented, *colours))
    versions = {process.record["sglang"] or "of unknown version" for process in live if process.record}
    listed = ", ".join(f"SGLang {terminal.printable(version)}" for version in sorted(versions))
    helpers = sum(process.helper is not None for process in shown)
    others = [process for process in shown if process.helper is None]
    beside = f", {helpers} helper{'s' if helpers > 1 else ''}" if helpers else ""
    print(f"\n{sum(p.record is not None for p in others)} of {len(others)} processes live{beside}; {listed}")


def _details(process: Process) -> Iterator[tuple[str, ...]]:
    """What is said below the row of a process, each with its colours."""
    if process.helper and not _failures(process):
        yield "a helper: there is nothing to repair in it", "dim"
        return
    if process.record is None:
        yield "not live", "yellow"
        return
    yield (_states(process),)
    for name, state in _failures(process).items():
        yield f"{name}: {state}", "red"
    if refused := _tally(process)[2]:
        yield ("refused: " + ", ".join(f"{reason} {count}" for reason, count in sorted(refused.items())),)
    if missed := _counts(process).get(counters.NOT_FETCHED, 0):
        yield (f"not fetched: images or videos of {missed} requests",)
    if unknown := _counts(process).get(counters.UNKNOWN_PATH, 0):
        yield (
            f"unknown path: {unknown} of these requests took a path through SGLang that deepeyes-patch "
            f"does not know, and only the last look judged them; please report it: {project.issues()}",
        )
    if process.record["version"] != __version__:
        yield (f"runs deepeyes-patch {process.record['version']}",)


def _short(name: str) -> str:
    """A command line without the folder of its program, which would fill the row."""
    if name.startswith("["):  # a process without a command line: the kernel's name for it
        return name
    program, blank, arguments = name.partition(" ")
    return program.rpartition("/")[2] + blank + arguments


def _states(process: Process) -> str:
    repairs = (process.record or {}).get("repairs", {})
    words = [f"{name}: {'failed' if s.startswith('failed') else s}" for name, s in repairs.items()]
    return "; ".join(words)
