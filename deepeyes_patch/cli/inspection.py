"""The facts for ``doctor``: start-up files, child interpreters, packages, switches and SGLang's source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from deepeyes_patch import settings
from deepeyes_patch.cli import installation, probe, repairs, unaided
from deepeyes_patch.cli.installation import Package, StartFile
from deepeyes_patch.cli.progress import Progress
from deepeyes_patch.cli.repairs import Repair
from deepeyes_patch.errors import SettingsError
from deepeyes_patch.settings import RELAX_SWITCH, SWITCH

DEEP_SECONDS = 600  # importing SGLang on a busy machine

# Our switches, and the variables of SGLang that decide whether it reaches the package.
_VARIABLES = (SWITCH, RELAX_SWITCH, "SGLANG_PLUGINS", "SGLANG_RUST_SERVER")
_PACKAGES = ("sglang", "torch", "transformers", "triton", "wrapt")


@dataclass
class Inspection:
    """The facts that `findings` judges and ``doctor`` prints.

    ``children``: whether the hooks are live in child interpreters, by flag. ``copies``: folders that hold
    our package. ``damaged``: our files that differ from those that pip installed. ``overlaid``: SGLang files
    that differ from its wheel; ``None`` if that cannot be known. ``loads_plugin``: whether this SGLang loads
    the package through its entry point. ``selected``: the repairs that are switched on; ``source``: the
    variable that selects them. ``deep``: the report of the child of ``--deep``. ``unaided``: with ``--deep``,
    what SGLang does with the repairs off.
    """

    files: list[StartFile]
    children: dict[str, str]
    copies: list[Path]
    damaged: list[str]
    packages: dict[str, Package]
    overlaid: list[str] | None
    loads_plugin: bool
    variables: dict[str, str | None]
    selected: frozenset[str]
    source: str | None
    switch_error: str | None
    repairs: dict[str, Repair]
    cuda: str | None
    deep: dict[str, Any] | None
    unaided: dict[str, Any] | None


def inspect(deep: bool) -> Inspection:
    """Look at everything; with ``deep``, import SGLang in a child."""
    children = probe.start_children()  # they run while this process reads
    selected, source, switch_error = _switch()
    packages = {name: installation.package(name) for name in _PACKAGES}
    sglang = packages["sglang"]
    examined = repairs.examine_all(Path(sglang.path), selected) if sglang.path else repairs.unknown()
    report = _import_in_child(selected) if deep else None
    asked = unaided.ask() if report and not report["error"] else None
    if asked and asked["right"] == asked["of"] > 0:
        repairs.mark_unneeded(examined["processor"])
    return Inspection(
        files=installation.start_files(),
        children=probe.answers(children),
        copies=installation.copies(),
        damaged=installation.damaged_files(),
        packages=packages,
        overlaid=installation.overlaid(sglang, repairs.wrapped_files(examined.values())),
        loads_plugin=installation.loads_our_plugin(sglang),
        variables={name: os.environ.get(name) for name in _VARIABLES},
        selected=selected,
        source=source,
        switch_error=switch_error,
        repairs=examined,
        cuda=installation.cuda_device(),
        deep=report,
        unaided=asked,
    )


def _switch() -> tuple[frozenset[str], str | None, str | None]:
    """The repairs that are switched on, the variable that selects them, and what is wrong with it."""
    try:
        selection = settings.read(os.environ)
    except SettingsError as error:
        return frozenset(), None, str(error)
    return selection.repairs, selection.source, None


def _import_in_child(selected: frozenset[str]) -> dict[str, Any]:
    """The report of `deepeyes_patch.cli.deep`. If no repair is switched on, it applies the default ones."""
    environ = {**os.environ, SWITCH: ",".join(sorted(selected or settings.DEFAULT))}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, Progress() as progress:
        child = subprocess.Popen(
            [sys.executable, "-m", "deepeyes_patch.cli.deep"], env=environ, stdout=out, stderr=err
        )
        try:
            if not progress.wait([child], DEEP_SECONDS, lambda: "importing SGLang in a child"):
                return _nothing(f"SGLang was not imported in {DEEP_SECONDS} s")
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        printed, complained = (_lines(file) for file in (out, err))
    try:
        report: dict[str, Any] = json.loads(printed[-1])
    except (IndexError, ValueError):
        return _nothing(f"the child ended with {child.returncode}: {(complained or ['it said nothing'])[-1]}")
    return report


def _lines(file: IO[str]) -> list[str]:
    file.seek(0)
    return file.read().strip().splitlines()


def _nothing(error: str) -> dict[str, Any]:
    return {"repairs": {}, "cuda": None, "error": error}
