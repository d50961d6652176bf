"""Which repairs the installed SGLang needs, and whether their seams are there, read in its source.

The same decisions as those of the repairs themselves, which look at the imported modules. ``tests/sglang``
holds the two against each other on the real releases.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from deepeyes_patch.seams import table as seams
from deepeyes_patch.seams.examine import Finding, Seam
from deepeyes_patch.seams.source import Definition, Module, Sources, parameters
from deepeyes_patch.settings import REPAIRS

NATIVE, NEEDED, READY, AVAILABLE, INCOMPATIBLE, UNKNOWN = (
    "native",
    "needed",
    "ready",
    "available",
    "incompatible",
    "unknown",
)

_QWEN_VL = "sglang.srt.multimodal.processors.qwen_vl"
_FACTORY = "sglang.srt.managers.multimodal_processor"
_INTAKE = "sglang.srt.managers.tokenizer_manager"
_RECEIVERS = ("sglang.srt.disaggregation.encode_receiver", "sglang.srt.disaggregation.encoder.receiver")
_RUST_SERVERS = ("sglang.srt.managers.rust_server", "sglang.srt.rust_server.server")
_ROPE = "sglang.srt.layers.rotary_embedding"
_QWEN3_5 = "sglang.srt.models.qwen3_5"


@dataclass
class Repair:
    """The state of a repair, why, and its seams as (owner, finding)."""

    state: str
    detail: str = ""
    seams: list[tuple[str, Finding]] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [f"{owner}.{f.seam.name}: {f.problem}" for owner, f in self.seams if f.problem is not None]


def examine(folder: Path, selected: Collection[str]) -> dict[str, Repair]:
    """Every repair's state for the SGLang in ``folder``, where ``selected`` ones are switched on."""
    reader = _Reader(Sources(folder))
    found = {"processor": reader.processor(), "mrope": reader.mrope(), "video": reader.video()}
    for name, repair in found.items():
        if repair.problems:
            repair.state = INCOMPATIBLE
            repair.detail = "; ".join(repair.problems)
        elif repair.state in (NEEDED, AVAILABLE) and name in selected:
            repair.state = READY
    return {name: found[name] for name in REPAIRS}


def unknown() -> dict[str, Repair]:
    return {name: Repair(UNKNOWN, "no SGLang here") for name in REPAIRS}


class _Reader:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def processor(self) -> Repair:
        repair = Repair(NEEDED, "token ids with images drift or explode in every SGLang so far")
        module = self._sources.module(_QWEN_VL)
        owner = self._processor_class(module)
        makes_artifacts = owner is not None and self._has(owner, "compose_image_artifacts")
        name = owner.node.name if owner else "the Qwen-VL processor"
        self._add(repair, name, owner, seams.processor_seams(makes_artifacts))
        self._add(repair, "qwen_vl", module, seams.MODULE_SEAMS)
        rope = self._sources.find(module, "MRotaryEmbedding")
        self._add(repair, "MRotaryEmbedding", rope, seams.ROPE_SEAMS)
        self._add(repair, "multimodal_processor", self._sources.module(_FACTORY), seams.FACTORY)
        manager = self._sources.find(self._sources.module(_INTAKE), "TokenizerManager")
        self._add(repair, "TokenizerManager", manager, seams.INTAKE)
        for name in _RECEIVERS:
            if (receiver := self._sources.module(name)) is not None:
                self._receivers(repair, receiver)
        for name in _RUST_SERVERS:
            if (server := self._sources.module(name)) is not None:
                found = self._sources.find(server, "RustServer")
                self._add(repair, "RustServer", found, seams.RUST_SERVER)
        return repair

    def _receivers(self, repair: Repair, module: Module) -> None:
        for wanted in (seams.WAITING, seams.RECEIVER):
            name = wanted[0].name
            owners = [c for c in self._sources.classes(module) if self._sources.own_member(c, name)]
            for owner in owners:
                self._add(repair, owner.node.name, owner, wanted)
            if not owners:
                self._add(repair, module.name, None, wanted)

    def video(self) -> Repair:
        repair = Repair(AVAILABLE, "for ids that transformers made of videos")
        module = self._sources.module(_QWEN_VL)
        found = self._sources.find(module, "preprocess_video")
        self._add(repair, "qwen_vl", module, [s for s in seams.MODULE_SEAMS if s.name == "preprocess_video"])
        if found is not None and not any(
            isinstance(node, ast.Name) and node.id == "video_metadata" for node in ast.walk(found.node)
        ):
            (owner, finding) = repair.seams[-1]
            problem = "it makes no metadata of the frames that it takes"
            repair.seams[-1] = (owner, Finding(finding.seam, finding.found, problem, present=True))
        return repair

    def mrope(self) -> Repair:
        module = self._sources.module(_ROPE)
        rope = self._sources.find(module, "MRotaryEmbedding")
        repair = Repair(NATIVE, "MRotaryEmbedding takes mrope_interleaved")
        self._add(repair, "rotary_embedding", module, seams.GET_ROPE)
        if rope is None:
            self._add(repair, "MRotaryEmbedding", None, seams.ROPE)
            return repair
        init = self._sources.member(rope, "__init__")
        if init is None or "mrope_interleaved" not in _parameters(init):
            repair.state, repair.detail = NEEDED, "MRotaryEmbedding ignores mrope_interleaved (Qwen3-VL)"
            self._add(repair, "MRotaryEmbedding", rope, seams.ROPE)
            plain = self._sources.find(module, "RotaryEmbedding")
            self._add(repair, "RotaryEmbedding", plain, seams.PLAIN_ROPE)
        self._gated_attention(repair)
        return repair

    def _gated_attention(self, repair: Repair) -> None:
        module = self._sources.module(_QWEN3_5)
        kernel = self._sources.find(module, seams.KERNEL)
        if kernel is None or any("mrope" in name for name in _parameters(kernel)):
            return
        what = "Qwen3.5's fused kernel on CUDA reads t alone"
        repair.detail = what if repair.state == NATIVE else f"{repair.detail}; {what}"
        repair.state = NEEDED
        self._add(repair, "qwen3_5", module, seams.GATED_ATTENTION)
        for name, wanted in ((seams.MODEL, seams.GATED_MODEL), (seams.LAYER, seams.GATED_LAYER)):
            self._add(repair, name, self._sources.find(module, name), wanted)

    def _processor_class(self, module: Module | None) -> Definition | None:
        owners = (
            [c for c in self._sources.classes(module) if self._has(c, "process_mm_data_async")]
            if module
            else []
        )
        return owners[0] if len(owners) == 1 else None

    def _has(self, owner: Definition, name: str) -> bool:
        return self._sources.member(owner, name) is not None

    def _add(
        self,
        repair: Repair,
        name: str,
        owner: Definition | Module | None,
        wanted: Collection[Seam],
    ) -> None:
        repair.seams += [(name, finding) for finding in self._sources.examine(owner, wanted)]


def _parameters(function: Definition) -> list[str]:
    return [] if isinstance(function.node, ast.ClassDef) else parameters(function.node)
