"""The change in ``docs/upstream``, made for SGLang itself: it applies to the release, and does what it says.

Here are the core cases, with our package off and on. ``make upstream`` has all cases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def doctor(**environ: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``doctor --deep`` says about the processor repair, and all that it says."""
    command = [sys.executable, "-m", "deepeyes_patch", "doctor", "--deep", "--json"]
    clean = {name: value for name, value in os.environ.items() if name not in run.OFF}
    done = subprocess.run(command, env={**clean, **environ}, capture_output=True, text=True, timeout=SECONDS)
    report = json.loads(done.stdout)
    return report["repairs"]["processor"], report


def test_doctor_notices(copy: Path) -> None:
    """By what SGLang does: the copy has the version of the release."""
    repair, report = doctor(PYTHONPATH=str(copy))
    assert report["unaided"] == {"right": 8, "of": 8, "wrong": None, "error": None}
    assert repair["state"] == "native"
    (note,) = (one for one in report["findings"] if one["id"] == "processor-native")
    assert "8 of 8 requests" in note["message"]
    assert "processor" not in report["verdict"]


def test_doctor_says_what_stock_cannot() -> None:
    repair, report = doctor()
    assert report["unaided"]["wrong"].startswith("every image expanded: HTTP 500")
    assert repair["state"] == "needed"
    assert "processor-native" not in {one["id"] for one in report["findings"]}


@pytest.mark.parametrize("name", changes.names())
def test_unit_tests_fail_without_the_change(name: str, tmp_path: Path) -> None:
    changed = changes.applied(tmp_path / "copy", name)
    before, after = (set(run.unit_test(tmp_path, changed, path, name).values()) for path in (None, changed))
    assert outcomes.FAILED in before
    assert after == {outcomes.PASSED}
