"""``make coverage``: the branches of our package that ``make nightly`` visits and ``make test`` does not.

``make nightly`` collects the data, of subprocesses and servers too (`tests.lab.coverage_hook`), and prints
the result at its end, line by line. Here it is made again from the data, and kept in `REPORT`. Standard
library only; coverage.py lies in a layer of the lab.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import speeds
from tests.cost import Part
from tests.lab import coverage_hook, environments
from tests.lab.environments import CHECKOUT

FOLDER = CHECKOUT / ".lab" / "coverage"
REPORT = FOLDER / "report.md"
# They run no tests. Lint runs none of our code, and the others serve what the tests serve.
UNMEASURED = ("matrix", "upstream", "load", "fuzz", "lint")
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


def environment(part: Part) -> dict[str, str]:
    """What a part of ``make nightly`` gets in its environment; made ready for it."""
    suite, speed = part
    if suite in UNMEASURED:
        return {}
    folder = FOLDER / (speeds.TEST if speed == speeds.TEST else speeds.ADDED)
    folder.mkdir(parents=True, exist_ok=True)
    env = {coverage_hook.FOLDER: str(folder), coverage_hook.LAYER: str(environments.coverage_layer())}
    for site_packages in (CHECKOUT / ".lab").glob("*/lib/python3.11/site-packages"):
        if not site_packages.parents[2].is_symlink():  # the checkout's own, no layer of the cache
            coverage_hook.enable(site_packages, env)
    return env


def forget() -> None:
    """Remove all data."""
    shutil.rmtree(FOLDER, ignore_errors=True)


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


def write_report() -> None:
    """Write `REPORT` from the data that there is, and print it."""
    layer = environments.coverage_layer()
    present = [folder for speed in (speeds.TEST, speeds.ADDED) if (folder := FOLDER / speed).exists()]
    test = combined([FOLDER / speeds.TEST], "by-test", layer)
    everything = combined(present, "by-nightly", layer)
    REPORT.write_text("\n".join(report(test, everything)) + "\n", encoding="utf-8")
    print(REPORT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    write_report()
