"""The table of seams against this release: what carries a wrapper, and which releases have a function."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from deepeyes_patch.seams import table
from deepeyes_patch.seams.examine import examine
from deepeyes_patch.seams.source import SourceView
from tests.lab import flags
from tests.lab.releases import in_range

ROWS = pytest.mark.parametrize(
    "number", range(len(table.SEAMS)), ids=[f"{s.repair}-{s.module}-{s.name}" for s in table.SEAMS]
)


@pytest.fixture(scope="module")
def source() -> SourceView:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    return SourceView(Path(next(iter(spec.submodule_search_locations))))


def is_native(in_child: dict[str, Any]) -> bool:
    return in_child["states"]["mrope"] == "native"


@pytest.mark.parametrize("machine", ["without CUDA", "with CUDA"])
def test_what_carries_a_wrapper_is_what_the_table_says(machine: str, in_child: dict[str, Any]) -> None:
    """First installed before SGLang is imported; then with Qwen3.5's kernel, and SGLang imported already."""
    found = in_child[machine]
    assert sorted(found["carriers"]) == sorted(found["expected"])
    assert len(found["expected"]) > 15, "a table of nothing is easily right"


@pytest.mark.parametrize("machine", ["without CUDA", "with CUDA"])
def test_other_modules_hold_a_wrapped_function_only_where_a_row_says_so(
    machine: str, in_child: dict[str, Any]
) -> None:
    by_name = {seam.name for seam in table.SEAMS if seam.imported_by_name}
    aliases = in_child[machine]["aliases"]
    assert {name for _, _, name, _ in aliases} == by_name
    tokenizer_manager = [module for module, *_ in aliases if module.endswith("tokenizer_manager")]
    assert tokenizer_manager, "SGLang's tokenizer manager imports get_mm_processor by name"


def test_uninstall_leaves_nothing(in_child: dict[str, Any]) -> None:
    assert in_child["left after uninstall"] == []


@ROWS
def test_the_releases_of_a_row(number: int, source: SourceView) -> None:
    """Nothing is decided by this column, and people read it."""
    seam = table.SEAMS[number]
    there = any(f.present and f.problem is None for f in examine(source, [seam]))
    assert there == (flags.installed().version in in_range(seam.releases)), seam.releases


@ROWS
def test_both_judges_say_the_same(number: int, source: SourceView, in_child: dict[str, Any]) -> None:
    """The one of source files, which ``doctor`` uses, and the one of imported modules, which decides."""
    seam = table.SEAMS[number]
    in_source = [[f.owner, f.present, f.problem] for f in examine(source, [seam])]
    if seam.module in in_child["missing"]:
        pytest.skip(f"{seam.module} needs {in_child['missing'][seam.module]}, which is not installed")
    assert in_child["findings"][number] == in_source
