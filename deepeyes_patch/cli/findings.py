"""Judge the facts that `inspection` collected. docs/en/cli.md lists the identifiers of all findings."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import deepeyes_patch
from deepeyes_patch import settings
from deepeyes_patch.cli import needs, probe, project, repairs
from deepeyes_patch.cli.inspection import Inspection
from deepeyes_patch.settings import SWITCH
from deepeyes_patch.startup import integrity

ERROR, WARNING, NOTE = "error", "warning", "note"

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
            yield Finding(f"{kind}-missing", level, message, project.reinstall())
        for file in files:
            if not file.intact:
                message = f"{file.path} is not the file that version {deepeyes_patch.__version__} ships"
                yield Finding(f"{kind}-edited", level, message, project.reinstall())


def _children(inspection: Inspection) -> Iterator[Finding]:
    states = {what: inspection.children[name] for name, what in _CHILDREN.items()}
    if unknown := [what for what, state in states.items() if state == probe.FAILED]:
        message = f"{' and '.join(unknown)} did not run, so whether the hooks are live there is not known"
        remedy = "run doctor again: in a folder that exists, and while the machine is less busy"
        yield Finding("not-live", ERROR, message, remedy)
    dead = [f"{what} ({state})" for what, state in states.items() if state in (probe.OFF, probe.BROKEN)]
    if not dead:
        return
    message = f"the hooks are not live in {' and '.join(dead)}"
    if _is_reached_as_plugin(inspection):
        message += "; SGLang loads them as a plugin, but not in HTTP workers (--tokenizer-worker-num)"
        remedy = "nothing, for a server without HTTP workers; else start with: deepeyes-patch run -- CMD"
        yield Finding("not-live", WARNING, message, remedy)
    else:
        yield Finding(
            "not-live", ERROR, message, f"{project.reinstall()}; or start with: deepeyes-patch run -- CMD"
        )


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
        yield Finding("package-damaged", ERROR, message, project.reinstall())
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
        return
    needed = needed_and_off(inspection)
    source = inspection.source
    if not inspection.selected:
        reason = (
            f"{SWITCH} is not set or empty"
            if source is None
            else f"{source}={inspection.variables[source]!r} says off"
        )
        level = WARNING if needed else NOTE
        yield Finding("switch-unset", level, f"{reason}: nothing is switched on", f"export {SWITCH}=1")
    elif needed:
        message = f"{source} leaves out {' and '.join(needed)}, which this SGLang needs"
        remedy = f"export {SWITCH}=1, unless your models do not need it"
        yield Finding("repair-off", NOTE, message, remedy)


def needed_and_off(inspection: Inspection) -> list[str]:
    """The repairs that this SGLang needs, and that are not switched on."""
    return [name for name, repair in inspection.repairs.items() if repair.state == repairs.NEEDED]


def unfit(inspection: Inspection) -> dict[str, bool]:
    """The repairs that are a finding because they do not fit this SGLang, and whether they are to be on.

    An old release may lack what an optional repair needs. That is a finding only if somebody has copied
    another release's file over SGLang's.
    """
    wanted = inspection.selected or settings.DEFAULT
    return {
        name: name in wanted
        for name, repair in inspection.repairs.items()
        if repair.state == repairs.INCOMPATIBLE and (name in wanted or inspection.overlaid)
    }


def verdict(inspection: Inspection, findings: Sequence[Finding]) -> str:
    """The last line of ``doctor``: how many findings there are, and what is not repaired."""
    parts = [_counted(level, findings) for level in (ERROR, WARNING, NOTE)]
    counts = ", ".join(part for part in parts if part) or "all is well"
    if needed := needed_and_off(inspection):
        plural = len(needed) > 1
        counts += f": the {' and '.join(needed)} repair{'s are' if plural else ' is'} needed and NOT on"
    return counts


def _counted(level: str, findings: Sequence[Finding]) -> str:
    count = sum(finding.level == level for finding in findings)
    return f"{count} {level}{'s' if count > 1 else ''}" if count else ""


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
    for name, is_on in unfit(inspection).items():
        detail = inspection.repairs[name].detail
        message = f"the {name} repair does not fit SGLang {sglang.version}: {detail}"
        remedy = "use a tested SGLang, or leave this repair out; please report it with doctor --report"
        yield Finding("incompatible", ERROR if is_on else WARNING, message, remedy)
    rust = (inspection.variables["SGLANG_RUST_SERVER"] or "").strip().lower()
    if rust in ("1", "true", "yes", "y", "on"):
        message = "SGLANG_RUST_SERVER takes requests past the processor; a Qwen-VL model would not start"
        yield Finding("rust-server", ERROR, message, "unset SGLANG_RUST_SERVER")


def _deep(inspection: Inspection) -> Iterator[Finding]:
    if inspection.deep is None or inspection.packages["sglang"].path is None:  # `_sglang` says so
        return
    remedy = f"start SGLang by itself, with {SWITCH}=off, to see whose fault it is"
    if error := inspection.deep["error"]:
        is_missing = error.startswith(ModuleNotFoundError.__name__)
        yield Finding("deep-failed", ERROR, error, needs.CHECK if is_missing else remedy)
    for name, state in inspection.deep["repairs"].items():
        if state.startswith("failed"):
            yield Finding("deep-failed", ERROR, f"{name}: {state}", remedy)
    unaided = inspection.unaided
    if unaided and unaided["right"] == unaided["of"] > 0:
        message = (
            f"this SGLang needs no processor repair for images: with the repairs off, {unaided['right']} of "
            f"{unaided['of']} requests came out as they should (a tiny Qwen3-VL). Videos, preprocessed items "
            f"and log-probs of the prompt were not tried"
        )
        remedy = "ask deepeyes-patch verify --model MODEL about a model of yours, before you leave it out"
        yield Finding("processor-native", NOTE, message, remedy)
