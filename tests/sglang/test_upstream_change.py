"""The change in ``docs/upstream``, made for SGLang itself: it applies to the release, and does what it says.

Here are the core cases, with our package off and on. ``make upstream`` has all cases.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import flags
from tests.upstream import cases, changes, outcomes, run

RELEASE = flags.installed().version
SECONDS = 600

pytestmark = pytest.mark.skipif(
    RELEASE != changes.RELEASE, reason=f"the changes are made for {changes.RELEASE}"
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changes.applied(tmp_path_factory.mktemp("changed") / "copy", changes.EXPANDED)


@pytest.mark.parametrize("switch", [None, "1"], ids=["package off", "package on"])
def test_core_cases(copy: Path, tmp_path: Path, switch: str | None) -> None:
    found = run.suite(tmp_path, copy, "--core", switch=switch, seconds=SECONDS)
    assert list(run.faults(found)) == []
    assert [tuple(rows) for by_way in found.values() for rows in by_way.values()] == [cases.CORE] * 2


def test_the_change_is_small() -> None:
    """One file, and few lines: what a reviewer reads in one sitting."""
    inside = [file for file in changes.files(changes.EXPANDED) if file.startswith("python/")]
    assert inside == ["python/sglang/srt/multimodal/processors/qwen_vl.py"]
    assert changes.added_lines(changes.EXPANDED) < 100


def test_all_changes_apply_together(tmp_path: Path) -> None:
    changes.applied(tmp_path / "copy", *changes.names())


def test_all_cases_with_the_package_on(copy: Path, tmp_path: Path) -> None:
    """The package refuses what the change leaves to SGLang."""
    found = run.suite(tmp_path, copy, switch="1")
    assert list(run.faults(found, but=cases.OUTSIDE)) == []
    for by_way in found.values():
        for rows in by_way.values():
            assert {rows[case] for case in cases.OUTSIDE} == {cases.REFUSED}
            assert rows[cases.DRIFTS[0]] == cases.EXACT


@pytest.mark.parametrize("name", changes.names())
def test_unit_tests_fail_without_the_change(name: str, tmp_path: Path) -> None:
    changed = changes.applied(tmp_path / "copy", name)
    before, after = (set(run.unit_test(tmp_path, changed, path, name).values()) for path in (None, changed))
    assert outcomes.FAILED in before
    assert after == {outcomes.PASSED}
