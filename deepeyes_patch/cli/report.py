"""The block that ``doctor --report`` prints, for an issue. It names no folder of the user's home."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import deepeyes_patch
from deepeyes_patch.cli.findings import Finding
from deepeyes_patch.cli.inspection import Inspection


def block(inspection: Inspection, findings: Sequence[Finding], verdict: str) -> str:
    """Markdown: the facts that every answer to an issue would ask for first."""
    lines = [
        f"deepeyes-patch {deepeyes_patch.__version__}, Python {platform.python_version()}, {_system()}",
        ", ".join(
            f"{name} {package.version or 'of unknown version' if package.path else 'not installed'}"
            for name, package in inspection.packages.items()
        ),
        f"CUDA: {(inspection.deep or {}).get('cuda') or inspection.cuda or 'no device seen'}",
        "hooks live: " + ", ".join(f"{name} {state}" for name, state in inspection.children.items()),
        "switches: "
        + (
            ", ".join(f"{n}={value!r}" for n, value in inspection.variables.items() if value is not None)
            or "none set"
        ),
    ]
    for name, repair in inspection.repairs.items():
        lines.append(f"{name}: {repair.state}, seams {repair.usable}")
        lines += [f"  {problem}" for problem in repair.problems]
    if inspection.deep:
        lines += [f"in a real process: {name}: {state}" for name, state in inspection.deep["repairs"].items()]
    lines += [f"{finding.level} [{finding.id}] {finding.message}" for finding in findings]
    text = "\n".join([*lines, verdict])
    return f"```text\n{_without_home(text)}\n```"


def _system() -> str:
    return f"{platform.system()} {platform.machine()}, {' '.join(filter(None, platform.libc_ver()))}"


def _without_home(text: str) -> str:
    """The environment and the home folder by short names: they may hold the name of a person or a machine."""
    for folder, name in ((Path(sys.prefix), "ENV"), (Path.home(), "~")):
        if folder != Path(folder.anchor):
            text = text.replace(f"{folder}/", f"{name}/")
    return text
