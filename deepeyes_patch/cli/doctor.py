"""``deepeyes-patch doctor``: check the installation, and whether this SGLang needs the repairs and fits them.

`inspection` collects the facts, `findings` judges them, and this module prints both.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import deepeyes_patch
from deepeyes_patch.cli import findings, installation, output, probe, project, repairs, report, terminal
from deepeyes_patch.cli.findings import ERROR, NOTE, WARNING, Finding
from deepeyes_patch.cli.inspection import Inspection, inspect
from deepeyes_patch.cli.installation import Package
from deepeyes_patch.cli.terminal import colour
from deepeyes_patch.settings import SWITCH

_EXAMPLES = """
deepeyes-patch doctor
deepeyes-patch doctor --deep      import SGLang too, which takes a while
deepeyes-patch doctor --strict    for an image: a warning ends with 1 too
deepeyes-patch doctor --json | jq .findings
"""


def add(commands: Any) -> None:
    parser = terminal.add_command(
        commands, "doctor", "say whether it is installed right, and needed and fitting here", _EXAMPLES
    )
    parser.add_argument("--deep", action="store_true", help="import SGLang in a child and apply the repairs")
    parser.add_argument(
        "--strict", action="store_true", help="end with 1 for a warning too, as an image should"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--report", action="store_true", help="print a block to paste into an issue")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    inspection = inspect(arguments.deep)
    judged = findings.judge(inspection)
    levels = {finding.level for finding in judged}
    verdict = findings.verdict(inspection, judged)
    if arguments.report:
        print(report.block(inspection, judged, verdict), flush=True)
        output.complain(f"Paste this into {project.issues()}, with the request and the answer.")
    elif arguments.json:
        is_well = not levels & {ERROR, WARNING}
        terminal.print_json("doctor", is_well, verdict=verdict, **_as_json(inspection, judged))
    else:
        _print(inspection, judged)
        colours = [_COLOURS[level] for level in (ERROR, WARNING) if level in levels]
        print(colour(verdict, *(colours[:1] or ["green"])))
    return 1 if levels & ({ERROR, WARNING} if arguments.strict else {ERROR}) else 0


def _as_json(inspection: Inspection, judged: Sequence[Finding]) -> dict[str, Any]:
    return {
        "version": deepeyes_patch.__version__,
        "findings": [asdict(finding) for finding in judged],
        "python": {
            "version": platform.python_version(),
            "executable": sys.executable,
            "site_packages": [str(folder) for folder in installation.site_directories()],
        },
        "startup": {
            "files": [{"path": str(f.path), "kind": f.kind, "intact": f.intact} for f in inspection.files],
            "children": inspection.children,
        },
        "switch": {
            "repairs": sorted(inspection.selected),
            "source": inspection.source,
            "variables": inspection.variables,
            "error": inspection.switch_error,
        },
        "packages": {name: asdict(package) for name, package in inspection.packages.items()},
        "cuda": inspection.cuda,
        "repairs": {
            name: {
                "state": repair.state,
                "detail": repair.detail,
                "seams": [
                    {"owner": f.owner, "name": f.seam.name, "found": f.found, "problem": f.problem}
                    for f in repair.seams
                ],
            }
            for name, repair in inspection.repairs.items()
        },
        "deep": inspection.deep,
        "unaided": inspection.unaided,
    }


_COLOURS = {ERROR: "red", WARNING: "yellow", NOTE: "dim"}
_LABEL = 14
_STATE = 13


def _print(inspection: Inspection, judged: Sequence[Finding]) -> None:
    _print_environment(inspection)
    print()
    for name, repair in inspection.repairs.items():
        is_good = repair.state in (repairs.NATIVE, repairs.READY, repairs.AVAILABLE)
        head = f"{name:<{_LABEL}}" + colour(f"{repair.state:<{_STATE}}", "green" if is_good else "yellow")
        seams = f"; seams {repair.usable}" if repair.seams else ""
        detail = "see below" if name in findings.unfit(inspection) else repair.detail
        print(head, terminal.wrapped(f"{detail}{seams}", " " * (_LABEL + _STATE + 1)).strip())
        if inspection.deep and name in inspection.deep["repairs"]:
            _line("", f"in a real process: {inspection.deep['repairs'][name]}")
        if inspection.unaided and name == "processor":
            _line("", f"without it: {_unaided(inspection.unaided)}")
    for finding in judged:
        print()
        label = f"{finding.level}: "
        text = terminal.wrapped(f"{finding.message} [{finding.id}]", "  ", " " * len(label)).strip()
        print(colour(label, _COLOURS[finding.level], "bold") + text)
        if finding.remedy:
            print(terminal.wrapped(finding.remedy, "      ", "  do: "))
    print()


def _print_environment(inspection: Inspection) -> None:
    print(colour(f"deepeyes-patch {deepeyes_patch.__version__}", "bold"))
    _line("package", str(Path(deepeyes_patch.__file__).parent))
    _line("Python", f"{platform.python_version()}  {sys.executable}")
    for folder in installation.site_directories():
        _line("site-packages", str(folder))
    for file in inspection.files:
        _line("start-up file", f"{'as shipped' if file.intact else 'EDITED'}: {file.path.name}")
    _line("hooks live", ", ".join(_child(name, state) for name, state in inspection.children.items()))
    for name, value in inspection.variables.items():
        if value is not None or name == SWITCH:
            _line("switch", f"{name} {'is not set' if value is None else '= ' + repr(value)}")
    selected = ", ".join(sorted(inspection.selected)) or "nothing"
    source = f" (from {inspection.source}, in the environment)" if inspection.source else ""
    _line("", f"on: {selected}{source}")
    for name, package in inspection.packages.items():
        _line(name, _described(name, package))
    device = (inspection.deep or {}).get("cuda") or inspection.cuda
    _line("CUDA", device or "no device seen")


def _unaided(asked: dict[str, Any]) -> str:
    if asked["error"]:
        return f"not known, because SGLang could not be asked: {asked['error']}"
    return str(asked["wrong"] or f"{asked['right']} of {asked['of']} requests come out as they should")


def _line(label: str, text: str) -> None:
    print(terminal.wrapped(text, " " * _LABEL, f"{label:<{_LABEL}}"))


def _child(name: str, state: str) -> str:
    words = {probe.LIVE: "yes", probe.OFF: "no", probe.BROKEN: "BROKEN", probe.FAILED: "FAILED"}
    return f"{name} {words[state]}{' (never)' if name == '-S' and state == probe.OFF else ''}"


def _described(name: str, package: Package) -> str:
    if package.path is None:
        return "not installed"
    is_renamed = package.distribution and package.distribution != name
    brought = f" (distribution {package.distribution})" if is_renamed else ""
    source = "" if package.distribution else " (no distribution: a source tree)"
    place = f"  {package.path}" if name == "sglang" else ""
    return f"{package.version or 'unknown version'}{brought}{source}{place}"
