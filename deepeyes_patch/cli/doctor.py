"""``deepeyes-patch doctor``: is it installed right, and does this SGLang need and fit it?"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import deepeyes_patch
from deepeyes_patch import settings
from deepeyes_patch.cli import installation, probe, repairs, terminal
from deepeyes_patch.cli.installation import Package, StartFile
from deepeyes_patch.cli.repairs import Repair
from deepeyes_patch.cli.terminal import colour
from deepeyes_patch.errors import SettingsError
from deepeyes_patch.settings import RELAX_SWITCH, SWITCH
from deepeyes_patch.startup import integrity

ERROR, WARNING, NOTE = "error", "warning", "note"
DEEP_SECONDS = 600  # importing SGLang on a busy machine

# Beside our own: the variables that decide whether the package is reached.
_VARIABLES = (SWITCH, RELAX_SWITCH, "SGLANG_PLUGINS", "SGLANG_RUST_SERVER")
_PACKAGES = ("sglang", "torch", "transformers", "triton", "wrapt")

_EXAMPLES = """
deepeyes-patch doctor
deepeyes-patch doctor --deep      import SGLang too, which takes a while
deepeyes-patch doctor --json | jq .findings
"""


@dataclass(frozen=True)
class Finding:
    """Something to know; the identifiers are listed in docs/en/cli.md."""

    id: str
    level: str
    message: str
    remedy: str | None = None


@dataclass
class Report:
    """All that was looked at."""

    files: list[StartFile]
    children: dict[str, str]
    copies: list[Path]
    damaged: list[str]
    packages: dict[str, Package]
    overlaid: list[str] | None
    plugin: bool  # whether this SGLang loads us through our entry point
    variables: dict[str, str | None]
    selected: frozenset[str]
    source: str | None
    switch_error: str | None
    repairs: dict[str, Repair]
    cuda: str | None
    deep: dict[str, Any] | None


def add(commands: Any) -> None:
    parser = terminal.add_command(
        commands, "doctor", "say whether it is installed right, and needed and fitting here", _EXAMPLES
    )
    parser.add_argument("--deep", action="store_true", help="import SGLang in a child and apply the repairs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    report = examine(arguments.deep)
    found = findings(report)
    ok = all(finding.level != ERROR for finding in found)
    if arguments.json:
        terminal.print_json("doctor", ok, **_as_json(report, found))
    else:
        _print(report, found)
    return 0 if ok else 1


def examine(deep: bool) -> Report:
    """Look at everything; with ``deep``, import SGLang in a child."""
    children = probe.start_children()  # they run while this process reads
    selected, source, problem = _selected()
    packages = {name: installation.package(name) for name in _PACKAGES}
    sglang = packages["sglang"]
    examined = repairs.examine_all(Path(sglang.path), selected) if sglang.path else repairs.unknown()
    return Report(
        files=installation.start_files(),
        children=probe.answers(children),
        copies=installation.copies(),
        damaged=installation.damaged_files(),
        packages=packages,
        overlaid=installation.overlaid(sglang, repairs.wrapped_files(examined.values())),
        plugin=installation.loads_our_plugin(sglang),
        variables={name: os.environ.get(name) for name in _VARIABLES},
        selected=selected,
        source=source,
        switch_error=problem,
        repairs=examined,
        cuda=installation.cuda_device(),
        deep=_deep(selected) if deep else None,
    )


def _selected() -> tuple[frozenset[str], str | None, str | None]:
    try:
        read = settings.read(os.environ)
    except SettingsError as error:
        return frozenset(), None, str(error)
    return read.repairs, read.source, None


def _deep(selected: frozenset[str]) -> dict[str, Any]:
    wanted = ",".join(sorted(selected or settings.DEFAULT))
    try:
        child = subprocess.run(
            [sys.executable, "-m", "deepeyes_patch.cli.deep"],
            env={**os.environ, SWITCH: wanted},
            capture_output=True,
            text=True,
            timeout=DEEP_SECONDS,
        )
        found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"repairs": {}, "cuda": None, "error": f"SGLang was not imported in {DEEP_SECONDS} s"}
    except (IndexError, ValueError):
        last = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"repairs": {}, "cuda": None, "error": f"the child ended with {child.returncode}: {last}"}
    return found


# --- judging ------------------------------------------------------------------------------------------


def findings(report: Report) -> list[Finding]:
    """What there is to say about a report, the worst first."""
    found = [
        *_about_start(report),
        *_about_package(report),
        *_about_switch(report),
        *_about_sglang(report),
        *_about_deep(report),
    ]
    return sorted(found, key=lambda finding: (ERROR, WARNING, NOTE).index(finding.level))


_REINSTALL = f"{sys.executable} -m pip install --force-reinstall --no-deps deepeyes-patch"


def _about_start(report: Report) -> list[Finding]:
    found = []
    # SGLang's own processes are reached all the same; only those of its HTTP workers are not.
    by_plugin = report.plugin and not report.files
    worst = WARNING if by_plugin else ERROR
    reads_start = sys.version_info >= (3, 15)
    for kind in ("pth", "start"):
        is_read = (kind == "start") == reads_start
        level = worst if is_read else WARNING
        files = [file for file in report.files if file.kind == kind]
        if not files:
            message = f"no site directory of this Python holds deepeyes_patch.{kind}"
            if is_read:
                message += ", so no process loads the repairs at start"
            else:
                message += f", which Python {'3.14' if reads_start else '3.15'} reads"
            found.append(Finding(f"{kind}-missing", level, message, _REINSTALL))
        for file in files:
            if not file.intact:
                message = f"{file.path} is not the file that version {deepeyes_patch.__version__} ships"
                found.append(Finding(f"{kind}-edited", level, message, _REINSTALL))
    dead = [name for name in ("fresh", "spawn") if report.children[name] != probe.LIVE]
    if dead:
        what = {"fresh": "a fresh interpreter", "spawn": "a spawned child"}
        states = " and ".join(f"{what[name]} ({report.children[name]})" for name in dead)
        message = f"the hooks are not live in {states}"
        remedy = f"{_REINSTALL}; or start with: deepeyes-patch run -- CMD"
        if by_plugin:
            message += "; SGLang loads them as a plugin, but not in HTTP workers (--tokenizer-worker-num)"
            remedy = "nothing, for a server without HTTP workers; else start with: deepeyes-patch run -- CMD"
        found.append(Finding("not-live", worst, message, remedy))
    return found


def _about_package(report: Report) -> list[Finding]:
    found = []
    if len(report.copies) > 1:
        others = ", ".join(map(str, report.copies[1:]))
        message = f"several copies: {report.copies[0]} is used, and {others} not"
        found.append(Finding("two-copies", WARNING, message, "remove all but one, or take it off PYTHONPATH"))
    starts = [file.path for file in report.files if file.kind == "pth"]
    if len(starts) > 1:
        message = f"several start-up files: {', '.join(map(str, starts))}; both are read, and one registers"
        found.append(Finding("two-copies", WARNING, message, "uninstall one of the installations"))
    if report.damaged:
        named = ", ".join(report.damaged[:3]) + (" ..." if len(report.damaged) > 3 else "")
        message = f"{len(report.damaged)} file(s) missing or changed since pip installed them: {named}"
        found.append(Finding("package-damaged", ERROR, message, _REINSTALL))
    wrapt = report.packages["wrapt"]
    install = f"{sys.executable} -m pip install 'wrapt>=1.16'"
    if wrapt.path is None:
        found.append(Finding("wrapt-missing", ERROR, "wrapt is not installed; SGLang would stop", install))
    elif wrapt.version and _numbers(wrapt.version) < integrity.WRAPT_MINIMUM:
        message = f"wrapt {wrapt.version} is older than 1.16; SGLang would stop"
        found.append(Finding("wrapt-old", ERROR, message, install))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _about_switch(report: Report) -> list[Finding]:
    if report.switch_error:
        return [
            Finding("switch-invalid", ERROR, report.switch_error, f"export {SWITCH}=1, or unset the variable")
        ]
    if not report.selected:
        how = f"{SWITCH} is not set" if report.source is None else f"{report.source} says off"
        return [Finding("switch-unset", NOTE, f"{how}: nothing is switched on", f"export {SWITCH}=1")]
    return []


def _about_sglang(report: Report) -> list[Finding]:
    sglang = report.packages["sglang"]
    if sglang.path is None:
        message = f"{sys.executable} has no sglang"
        return [Finding("sglang-missing", ERROR, message, "run doctor with the Python that SGLang runs with")]
    found = []
    if report.overlaid:
        message = (
            f"{', '.join(report.overlaid)}: not what {sglang.distribution} {sglang.version} brought; "
            f"somebody has copied over it or edited it"
        )
        remedy = (
            f"{sys.executable} -m pip install --force-reinstall --no-deps "
            f"{sglang.distribution}=={sglang.version}"
        )
        found.append(Finding("sglang-overlay", ERROR, message, remedy))
    if report.overlaid is None:
        message = (
            f"whether somebody has copied over SGLang's files cannot be told: {sglang.path} is a source "
            f"tree, or has no RECORD to compare with"
        )
        found.append(Finding("sglang-unchecked", NOTE, message, f"git -C {sglang.path} status --short"))
    for name, repair in report.repairs.items():
        if repair.state == repairs.INCOMPATIBLE:
            on = name in (report.selected or settings.DEFAULT)
            message = f"the {name} repair does not fit SGLang {sglang.version}: {repair.detail}"
            remedy = "use a tested SGLang, or leave this repair out; please report it with doctor --json"
            if on or report.overlaid:
                found.append(Finding("incompatible", ERROR if on else WARNING, message, remedy))
    rust = (report.variables["SGLANG_RUST_SERVER"] or "").strip().lower()
    if rust in ("1", "true", "yes", "y", "on"):
        message = "SGLANG_RUST_SERVER takes requests past the processor; a Qwen-VL model would not start"
        found.append(Finding("rust-server", ERROR, message, "unset SGLANG_RUST_SERVER"))
    return found


def _about_deep(report: Report) -> list[Finding]:
    if report.deep is None:
        return []
    failed = [
        f"{name}: {state}" for name, state in report.deep["repairs"].items() if state.startswith("failed")
    ]
    problems = [*([report.deep["error"]] if report.deep["error"] else []), *failed]
    remedy = "start SGLang by itself, with DEEPEYES_PATCH=off, to see whose fault it is"
    return [Finding("deep-failed", ERROR, problem, remedy) for problem in problems]


# --- writing ------------------------------------------------------------------------------------------


def _as_json(report: Report, found: list[Finding]) -> dict[str, Any]:
    return {
        "version": deepeyes_patch.__version__,
        "findings": [asdict(finding) for finding in found],
        "python": {
            "version": platform.python_version(),
            "executable": sys.executable,
            "site_packages": [str(folder) for folder in installation.site_directories()],
        },
        "startup": {
            "files": [{"path": str(f.path), "kind": f.kind, "intact": f.intact} for f in report.files],
            "children": report.children,
        },
        "switch": {
            "repairs": sorted(report.selected),
            "source": report.source,
            "variables": report.variables,
            "error": report.switch_error,
        },
        "packages": {name: asdict(package) for name, package in report.packages.items()},
        "cuda": report.cuda,
        "repairs": {
            name: {
                "state": repair.state,
                "detail": repair.detail,
                "seams": [
                    {"owner": f.owner, "name": f.seam.name, "found": f.found, "problem": f.problem}
                    for f in repair.seams
                ],
            }
            for name, repair in report.repairs.items()
        },
        "deep": report.deep,
    }


_COLOURS = {ERROR: "red", WARNING: "yellow", NOTE: "dim"}
_LABEL = 14


def _print(report: Report, found: list[Finding]) -> None:
    print(colour(f"deepeyes-patch {deepeyes_patch.__version__}", "bold"))
    _line("package", str(Path(deepeyes_patch.__file__).parent))
    _line("Python", f"{platform.python_version()}  {sys.executable}")
    for folder in installation.site_directories():
        _line("site-packages", str(folder))
    for file in report.files:
        _line("start-up file", f"{'as shipped' if file.intact else 'EDITED'}: {file.path.name}")
    _line("hooks live", ", ".join(_child(name, state) for name, state in report.children.items()))
    for name, value in report.variables.items():
        if value is not None or name == SWITCH:
            _line("switch", f"{name} {'is not set' if value is None else '= ' + repr(value)}")
    on = ", ".join(sorted(report.selected)) or "nothing"
    _line("", f"on: {on}" + (f" (from {report.source}, in the environment)" if report.source else ""))
    for name, package in report.packages.items():
        _line(name, _described(name, package))
    device = (report.deep or {}).get("cuda") or report.cuda
    _line("CUDA", device or "no device seen")
    print()
    for name, repair in report.repairs.items():
        good = repair.state in (repairs.NATIVE, repairs.READY, repairs.AVAILABLE)
        head = f"{name:<{_LABEL}}" + colour(f"{repair.state:<13}", "green" if good else "yellow")
        detail = "see below" if repair.state == repairs.INCOMPATIBLE else repair.detail
        print(head, terminal.wrapped(f"{detail}{_counted(repair)}", " " * (_LABEL + 14)).strip())
        if report.deep and name in report.deep["repairs"]:
            _line("", f"in a real process: {report.deep['repairs'][name]}")
    for finding in found:
        print()
        label = f"{finding.level}: "
        text = terminal.wrapped(f"{finding.message} [{finding.id}]", "  ", " " * len(label)).strip()
        print(colour(label, _COLOURS[finding.level], "bold") + text)
        if finding.remedy:
            print(terminal.wrapped(finding.remedy, "      ", "  do: "))
    print()
    errors = sum(finding.level == ERROR for finding in found)
    print(colour("all is well", "green") if not errors else colour(f"{errors} error(s)", "red"))


def _counted(repair: Repair) -> str:
    """How many of the seams that are there or should be are usable."""
    wanted = [f for f in repair.seams if f.present or f.problem is not None]
    usable = sum(f.problem is None for f in wanted)
    return f"; seams {usable}/{len(wanted)}" if wanted else ""


def _line(label: str, text: str) -> None:
    print(terminal.wrapped(text, " " * _LABEL, f"{label:<{_LABEL}}"))


def _child(name: str, state: str) -> str:
    words = {probe.LIVE: "yes", probe.OFF: "no", probe.BROKEN: "BROKEN", probe.FAILED: "FAILED"}
    return f"{name} {words[state]}{' (never)' if name == '-S' and state == probe.OFF else ''}"


def _described(name: str, package: Package) -> str:
    if package.path is None:
        return "not installed"
    other = package.distribution and package.distribution != name
    brought = f" (distribution {package.distribution})" if other else ""
    source = "" if package.distribution else " (no distribution: a source tree)"
    place = f"  {package.path}" if name == "sglang" else ""
    return f"{package.version or 'unknown version'}{brought}{source}{place}"
