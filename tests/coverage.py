"""``make coverage``: the branches of our package that ``make nightly`` visits and ``make test`` does not.

``python3 -m tests.coverage SUITE ...`` runs the suites twice: what ``make test`` runs of them, then what
nightly adds. Subprocesses and servers are measured, too (`tests.lab.coverage_hook`). The result is printed,
line by line, and kept in `REPORT`. ``--report`` prints it again from the data. A suite that fails is named,
and its data counts. Standard library only; coverage.py lies in a layer of the lab.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import cost, speeds
from tests.lab import coverage_hook, environments
from tests.lab.environments import CHECKOUT

FOLDER = CHECKOUT / ".lab" / "coverage"
REPORT = FOLDER / "report.md"
JOBS = 2
# Copies of the package, wherever an environment has it, count as the checkout's.
CONFIG = f"""
[run]
branch = True
relative_files = False
[paths]
package =
    {CHECKOUT}/deepeyes_patch
    */site-packages/deepeyes_patch
    */deepeyes_patch
[report]
include = {CHECKOUT}/deepeyes_patch/*
"""


def measure(suites: Sequence[str], layer: Path) -> None:
    environments.ensure([environments.BASE, *{s.partition("-")[2] for s in suites if "-" in s}])
    for speed in (speeds.TEST, speeds.ADDED):
        folder = FOLDER / speed
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        env = {coverage_hook.FOLDER: str(folder), coverage_hook.LAYER: str(layer)}
        os.environ.update(env)
        for site_packages in (CHECKOUT / ".lab").glob("*/lib/python3.11/site-packages"):
            if not site_packages.parents[2].is_symlink():  # the checkout's own, no layer of the cache
                coverage_hook.enable(site_packages)
        with contextlib.closing(cost.together(suites, speed, JOBS, env=env)) as ended:
            for one in ended:
                print(f"{speed}: {one.suite}: {one.said} ({one.code}), {one.wall / 60:.0f} min", flush=True)


def combined(folders: Sequence[Path], name: str, layer: Path) -> Any:
    """coverage.py's report, as JSON, of all data in these folders."""
    # coverage.py combines files that are called as the result is.
    config, data = FOLDER / "config", FOLDER / name / coverage_hook.DATA
    data.parent.mkdir(exist_ok=True)
    config.write_text(CONFIG, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(layer), "COVERAGE_FILE": str(data), "COVERAGE_RCFILE": str(config)}
    env.pop(coverage_hook.FOLDER, None)
    python = str(environments.base_python())
    command = [python, "-m", "coverage", "combine", "--keep", "--quiet", *map(str, folders)]
    subprocess.run(command, env=env, cwd=CHECKOUT, check=True)
    target = FOLDER / f"{name}.json"
    command = [python, "-m", "coverage", "json", "--quiet", "-o", str(target)]
    subprocess.run(command, env=env, cwd=CHECKOUT, check=True)
    return json.loads(target.read_text(encoding="utf-8"))


def report(test: Any, everything: Any) -> Iterator[str]:
    """What only nightly visits, and what nothing visits."""
    names = {"make test": test["totals"], "make nightly": everything["totals"]}
    yield "| | lines | branches |"
    yield "|---|---|---|"
    for name, totals in names.items():
        yield (
            f"| `{name}` | {totals['covered_lines']} of {totals['num_statements']} "
            f"| {totals['covered_branches']} of {totals['num_branches']} |"
        )
    yield ""
    yield from _listed("Only `make nightly` visits", lost(test, everything))
    yield ""
    yield from _listed("Neither visits", missed(everything))


def lost(test: Any, everything: Any) -> dict[str, list[tuple[int, str]]]:
    """By file: (line, what of it) that nightly adds."""
    found = {}
    for name, file in everything["files"].items():
        before = test["files"].get(name, {"executed_lines": [], "executed_branches": []})
        lines = set(file["executed_lines"]) - set(before["executed_lines"])
        branches = {tuple(b) for b in file["executed_branches"]} - {
            tuple(b) for b in before["executed_branches"]
        }
        if rows := _rows(lines, branches):
            found[name] = rows
    return found


def missed(everything: Any) -> dict[str, list[tuple[int, str]]]:
    """By file: (line, what of it) that no test visits."""
    found = {}
    for name, file in everything["files"].items():
        rows = _rows(set(file["missing_lines"]), {tuple(branch) for branch in file["missing_branches"]})
        if rows:
            found[name] = rows
    return found


def _rows(lines: set[int], branches: set[tuple[int, int]]) -> list[tuple[int, str]]:
    """A branch that leaves a line of ``lines`` says nothing that the line does not say."""
    rows = [(line, "") for line in lines]
    for line, to in branches:
        if line not in lines and to not in lines:
            rows.append((line, f"to line {to}" if to > 0 else "to the end of the function"))
    return sorted(rows)


def _listed(title: str, files: dict[str, list[tuple[int, str]]]) -> Iterator[str]:
    count = sum(map(len, files.values()))
    yield f"{title}: {count or 'nothing'}"
    for name, rows in files.items():
        source = (CHECKOUT / name).read_text(encoding="utf-8").splitlines()
        for line, what in rows:
            where = Path(name).relative_to(CHECKOUT) if Path(name).is_absolute() else name
            yield f"    {where}:{line}{' ' if what else ''}{what}: {source[line - 1].strip()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--report", action="store_true", help="run nothing")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    layer = environments.coverage_layer()
    if not given.report:
        measure(given.suites, layer)
    folders = {speed: FOLDER / speed for speed in (speeds.TEST, speeds.ADDED)}
    present = [folder for folder in folders.values() if folder.exists()]
    test = combined([folders[speeds.TEST]], "by-test", layer)
    everything = combined(present, "by-nightly", layer)
    REPORT.write_text("\n".join(report(test, everything)) + "\n", encoding="utf-8")
    print(REPORT.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted; `python3 -m tests.coverage --report` shows what there is")
        sys.exit(130)
