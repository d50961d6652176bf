"""Which repairs the installed SGLang needs, and whether they fit it, according to the table of seams."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from deepeyes_patch.seams import facts, table, table_deepstack, table_mrope
from deepeyes_patch.seams.examine import Finding, examine
from deepeyes_patch.seams.rows import Seam
from deepeyes_patch.seams.source import SourceView
from deepeyes_patch.settings import REPAIRS

NATIVE, NEEDED, READY, AVAILABLE, INCOMPATIBLE, UNKNOWN = (
    "native",
    "needed",
    "ready",
    "available",
    "incompatible",
    "unknown",
)


@dataclass
class Repair:
    """A repair's state, the reason, what was found at its seams, and the SGLang files that it depends on.

    ``seams``: those that exist here or must exist. A function that this release does not have, and does not
    need, is not counted.
    """

    state: str
    detail: str = ""
    seams: list[Finding] = field(default_factory=list)
    files: frozenset[Path] = frozenset()

    @property
    def usable(self) -> str:
        """How many of the seams are usable, as ``9/9``."""
        return f"{sum(found.problem is None for found in self.seams)}/{len(self.seams)}"

    @property
    def problems(self) -> list[str]:
        return [f"{f.owner}.{f.seam.name}: {f.problem}" for f in self.seams if f.problem is not None]


def examine_all(folder: Path, selected: Collection[str]) -> dict[str, Repair]:
    """The state of every repair for the SGLang in ``folder``. ``selected``: the repairs that are on."""
    view = SourceView(folder)
    repairs = {
        "processor": Repair(NEEDED, "token ids with images drift or explode"),
        "mrope": _mrope(view),
        "video": Repair(AVAILABLE, "for ids that transformers made of videos"),
        "sampling": Repair(AVAILABLE, "for policies that sample placeholders"),
        "deepstack": _deepstack(view),
    }
    for name, repair in repairs.items():
        rows = [seam for seam in table.SEAMS if seam.repair == name]
        findings = examine(view, rows)
        repair.seams = [found for found in findings if found.present or found.problem is not None]
        repair.files = _files(view, rows, findings)
        if repair.problems:
            repair.state = INCOMPATIBLE
            repair.detail = "; ".join(repair.problems)
        elif repair.state in (NEEDED, AVAILABLE) and name in selected:
            repair.state = READY
    return {name: repairs[name] for name in REPAIRS}


def mark_unneeded(processor: Repair) -> None:
    """Say that SGLang has served expanded ids of images exactly with the repair off."""
    if processor.state == NEEDED:
        processor.state = NATIVE
        processor.detail = "this SGLang serves expanded ids of images exactly by itself"


def unknown() -> dict[str, Repair]:
    """The state of every repair if there is no SGLang."""
    return {name: Repair(UNKNOWN, "no SGLang here") for name in REPAIRS}


def _files(view: SourceView, rows: Iterable[Seam], findings: Iterable[Finding]) -> frozenset[Path]:
    """The files of the modules that rows name, and of those that define an inherited or imported function."""
    modules = [module for row in rows if (module := view.module(row.module)) is not None]
    defining = [Path(finding.file) for finding in findings if finding.file is not None]
    return frozenset([*(module.path for module in modules), *defining])


def wrapped_files(repairs: Iterable[Repair]) -> list[Path]:
    """The SGLang files that define the functions of the table."""
    return sorted(frozenset[Path]().union(*(repair.files for repair in repairs)))


def _deepstack(view: SourceView) -> Repair:
    model = view.module(table_deepstack.MODEL)
    if model is not None and facts.leaves_sums_to_the_next_layer(view, model):
        return Repair(AVAILABLE, "for Qwen3-VL-MoE with TP > 1")
    return Repair(NATIVE, "no layer leaves its all-reduce to the next one")


def _mrope(view: SourceView) -> Repair:
    faults = []
    rotary = view.module(table_mrope.ROTARY_EMBEDDING)
    if rotary is not None and facts.ignores_interleaving(view, rotary):
        faults.append("MRotaryEmbedding ignores mrope_interleaved (Qwen3-VL)")
    qwen3_5 = view.module(table_mrope.QWEN3_5)
    if qwen3_5 is not None and facts.kernel_reads_t_alone(view, qwen3_5):
        faults.append("Qwen3.5's fused kernel on CUDA reads t alone")
    if faults:
        return Repair(NEEDED, "; ".join(faults))
    detail = "MRotaryEmbedding takes mrope_interleaved"
    forward_batch = view.module(table_mrope.FORWARD_BATCH)
    if forward_batch is not None and facts.drops_positions(view, forward_batch):
        detail = "needed with --rl-on-policy-target alone"
    return Repair(NATIVE, detail)
