"""This release with the function of one row renamed: ``doctor`` and the server come to the same.

``doctor`` reads a copy on disk in which that definition is edited. A child process has renamed the function
in memory, installed the repairs, and tried to serve a model.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepeyes_patch.cli import repairs
from deepeyes_patch.seams import source, table
from deepeyes_patch.seams.source import SourceView
from deepeyes_patch.settings import REPAIRS
from tests.lab import altered
from tests.sglang.test_table import ROWS

KERNEL = "fused_qk_gemma_rmsnorm_rope_gate"


@pytest.fixture(scope="module")
def package() -> Path:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(autouse=True, scope="module")
def parse_each_file_once() -> Iterator[None]:
    """All but one file of each copy are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source.ast, "parse", functools.cache(ast.parse))
        yield


def rename(name: str, lines: list[int]) -> altered.Edit:
    """Rename the functions of this name whose definitions, or their decorators, begin in these lines."""

    def edit(text: str) -> str:
        parts = text.splitlines(keepends=True)
        for line in lines:
            at = line - 1
            while not re.match(rf"\s*(async\s+)?def {name}\b", parts[at]):
                at += 1
            parts[at] = parts[at].replace(f"def {name}", f"def {name}_renamed")
        return "".join(parts)

    return edit


@ROWS
def test_a_renamed_function(number: int, package: Path, tmp_path: Path, in_child: dict[str, Any]) -> None:
    seam, live = table.SEAMS[number], in_child["renamed"][number]
    if seam.module in in_child["missing"]:
        pytest.skip(f"{seam.module} needs {in_child['missing'][seam.module]}, which is not installed")
    if live is None:
        assert not any(present for _, present, _ in in_child["findings"][number])
        pytest.skip("this release has no such function")
    edits: dict[str, list[int]] = {}
    for file, line in live["definitions"]:
        edits.setdefault(str(Path(file).relative_to(package)), []).append(line)
    copy = altered.copy(tmp_path, {file: rename(seam.name, lines) for file, lines in edits.items()})
    doctor = repairs.examine_all(copy / "sglang", REPAIRS)
    for name, repair in doctor.items():
        # One that this release is too old for was not installed.
        failed = name in live["failures"] or in_child["states"][name].startswith("failed")
        assert (repair.state == "incompatible") == failed, (name, repair, live)
    found = doctor[seam.repair]
    if in_child["states"][seam.repair].startswith("failed"):
        assert seam.name in found.detail
    elif is_needed(seam.name, seam.module, required=is_required(number, package)):
        assert found.state == "incompatible"
        assert seam.name in found.detail
        assert f"{seam.name}(" in live["failures"][seam.repair]
        assert live["stopped"] is not None, "a server would have started"
        assert live["stopped"] in live["failures"].values()
        assert f"{seam.name}(" in live["stopped"]
    else:
        assert found.state != "incompatible"
        assert live["stopped"] is None or seam.name == "__init__"


def is_required(number: int, package: Path) -> bool:
    """Whether a row's function has to be there in this release."""
    view, seam = SourceView(package), table.SEAMS[number]
    return seam.required(view, view.module(seam.module))


def is_needed(name: str, module: str, required: bool) -> bool:
    """Whether this release is not served without a row's function."""
    if name == "__init__":
        # Without it a class has the constructor of its base. Qwen3-VL's base is torch's.
        return module.endswith(".qwen3_vl")
    # Without the kernel, Qwen3.5's attention is that of other machines, which needs no repair.
    return required and name != KERNEL
