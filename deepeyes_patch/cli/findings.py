"""Judge the facts that `inspection` collected. docs/en/cli.md lists the identifiers of all findings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import deepeyes_patch
from deepeyes_patch import settings
from deepeyes_patch.cli import probe, repairs
from deepeyes_patch.cli.inspection import Inspection
from deepeyes_patch.settings import SWITCH
from deepeyes_patch.startup import integrity

ERROR, WARNING, NOTE = "error", "warning", "note"

_REINSTALL = f"{sys.executable} -m pip install --force-reinstall --no-deps deepeyes-patch"
_CHILDREN = {"fresh": "a fresh interpreter", "spawn": "a spawned child"}


@dataclass(frozen=True)
class Finding:
    """Something that the user should know. ``remedy``: what to do about it."""

    id: str
    level: str
    message: str
    remedy: str | None = None


def judge(inspection: Inspection) -> list[Finding]:
    """Every finding, errors first, then warnings, then notes."""
    findings = [
        *_start_files(inspection),
        *_children(inspection),
        *_copies(inspection),
        *_package(inspection),
        *_switch(inspection),
        *_sglang(inspection),
        *_deep(inspection),
    ]
    return sorted(findings, key=lambda finding: (ERROR, WARNING, NOTE).index(finding.level))


def _is_reached_as_plugin(inspection: Inspection) -> bool:
    """Whether SGLang loads this package as a plugin, and there are no start-up files."""
    return inspection.loads_plugin and not inspection.files


def _start_files(inspection: Inspection) -> Iterator[Finding]:
    reads_start = sys.version_info >= (3, 15)
    for kind in ("pth", "start"):
        is_read = (kind == "start") == reads_start
        level = ERROR if is_read and not _is_reached_as_plugin(inspection) else WARNING
        files = [file for file in inspection.files if file.kind == kind]
        if not files:
            message = f"no site directory of this Python holds deepeyes_patch.{kind}"
            if is_read:
                message += ", so no process loads the repairs at start"
            else:
                message += f", which Python {'3.14' if reads_start else '3.15'} reads"
            yield Finding(f"{kind}-missing", level, message, _REINSTALL)
        for file in files:
            if not file.intact:
                message = f"{file.path} is not the file that version {deepeyes_patch.__version__} ships"
                yield Finding(f"{kind}-edited", level, message, _REINSTALL)


def _children(inspection: Inspection) -> Iterator[Finding]:
    dead = [
        f"{what} ({state})"
        for name, what in _CHILDREN.items()
        if (state := inspection.children[name]) != probe.LIVE
    ]
    if not dead:
        return
    message = f"the hooks are not live in {' and '.join(dead)}"
    if _is_reached_as_plugin(inspection):
        message += "; SGLang loads them as a plugin, but not in HTTP workers (--tokenizer-worker-num)"
        remedy = "nothing, for a server without HTTP workers; else start with: deepeyes-patch run -- CMD"
        yield Finding("not-live", WARNING, message, remedy)
    else:
        yield Finding("not-live", ERROR, message, f"{_REINSTALL}; or start with: deepeyes-patch run -- CMD")


def _copies(inspection: Inspection) -> Iterator[Finding]:
    if len(inspection.copies) > 1:
        used, *others = inspection.copies
        message = f"several copies: {used} is used, and {', '.join(map(str, others))} not"
        yield Finding("two-copies", WARNING, message, "remove all but one, or take it off PYTHONPATH")
    starts = [file.path for file in inspection.files if file.kind == "pth"]
    if len(starts) > 1:
        message = f"several start-up files: {', '.join(map(str, starts))}; both are read, and one registers"
        yield Finding("two-copies", WARNING, message, "uninstall one of the installations")


def _package(inspection: Inspection) -> Iterator[Finding]:
    if damaged := inspection.damaged:
        named = ", ".join(damaged[:3]) + (" ..." if len(damaged) > 3 else "")
        message = f"{len(damaged)} file(s) missing or changed since pip installed them: {named}"
        yield Finding("package-damaged", ERROR, message, _REINSTALL)
    wrapt = inspection.packages["wrapt"]
    install = f"{sys.executable} -m pip install 'wrapt>={integrity.WRAPT_MINIMUM}'"
    if wrapt.path is None:
        yield Finding("wrapt-missing", ERROR, "wrapt is not installed; SGLang would stop", install)
    elif wrapt.version and integrity.is_too_old(wrapt.version):
        message = f"wrapt {wrapt.version} is older than {integrity.WRAPT_MINIMUM}; SGLang would stop"
        yield Finding("wrapt-old", ERROR, message, install)


def _switch(inspection: Inspection) -> Iterator[Finding]:
    if inspection.switch_error:
        remedy = "set it to a value that this message names, or unset it"
        yield Finding("switch-invalid", ERROR, inspection.switch_error, remedy)
    elif not inspection.selected:
        source = inspection.source
        reason = f"{SWITCH} is not set" if source is None else f"{source} says off"
        yield Finding("switch-unset", NOTE, f"{reason}: nothing is switched on", f"export {SWITCH}=1")


def _sglang(inspection: Inspection) -> Iterator[Finding]:
    sglang = inspection.packages["sglang"]
    if sglang.path is None:
        message = f"{sys.executable} has no sglang"
        remedy = "run doctor with the Python that SGLang runs with"
        yield Finding("sglang-missing", ERROR, message, remedy)
        return
    if inspection.overlaid:
        message = (
            f"{', '.join(inspection.overlaid)}: not what {sglang.distribution} {sglang.version} brought; "
            f"somebody has copied over it or edited it"
        )
        remedy = (
            f"{sys.executable} -m pip install --force-reinstall --no-deps "
            f"{sglang.distribution}=={sglang.version}"
        )
        yield Finding("sglang-overlay", ERROR, message, remedy)
    if inspection.overlaid is None:
        message = (
            f"whether somebody has copied over SGLang's files cannot be told: {sglang.path} is a source "
            f"tree, or has no RECORD to compare with"
        )
        yield Finding("sglang-unchecked", NOTE, message, f"git -C {sglang.path} status --short")
    for name, repair in inspection.repairs.items():
        if repair.state == repairs.INCOMPATIBLE:
            is_on = name in (inspection.selected or settings.DEFAULT)
            message = f"the {name} repair does not fit SGLang {sglang.version}: {repair.detail}"
            remedy = "use a tested SGLang, or leave this repair out; please report it with doctor --json"
            if is_on or inspection.overlaid:
                yield Finding("incompatible", ERROR if is_on else WARNING, message, remedy)
    rust = (inspection.variables["SGLANG_RUST_SERVER"] or "").strip().lower()
    if rust in ("1", "true", "yes", "y", "on"):
        message = "SGLANG_RUST_SERVER takes requests past the processor; a Qwen-VL model would not start"
        yield Finding("rust-server", ERROR, message, "unset SGLANG_RUST_SERVER")


def _deep(inspection: Inspection) -> Iterator[Finding]:
    if inspection.deep is None or inspection.packages["sglang"].path is None:  # `_sglang` says so
        return
    problems = [
        f"{name}: {state}" for name, state in inspection.deep["repairs"].items() if state.startswith("failed")
    ]
    if inspection.deep["error"]:
        problems.insert(0, inspection.deep["error"])
    remedy = "start SGLang by itself, with DEEPEYES_PATCH=off, to see whose fault it is"
    for problem in problems:
        yield Finding("deep-failed", ERROR, problem, remedy)
