"""Runs files of tests in children, and tells the outcome of each test."""

from __future__ import annotations

import contextlib
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab import children
from tests.lab.children import ChildFailed

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def of(
    python: str | Path,
    tests: Sequence[Path],
    root: Path,
    folder: Path,
    env: Mapping[str, str | None],
    seconds: float,
) -> dict[str, str]:
    """Run tests with pytest in one child, whose files go to ``folder``: test -> outcome.

    A file that cannot be imported is one test that has failed; so is a run without a report.
    """
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command: Sequence[str | Path] = [
        *(python, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("--continue-on-collection-errors", "--rootdir", root, f"--junitxml={report}", *tests),
    ]
    with contextlib.suppress(ChildFailed):  # the report tells what has failed
        children.run(command, folder / "tests.log", seconds, env, quiet=True, cwd=folder)
    return _read(report) if report.exists() else {"the run": FAILED}


def _read(report: Path) -> dict[str, str]:
    """A test with subtests is one test here: it has failed if one of them has."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        outcome = FAILED if kinds & {"failure", "error"} else SKIPPED if "skipped" in kinds else PASSED
        found[name] = FAILED if FAILED in (outcome, found.get(name)) else outcome
    return found


def counted(found: Mapping[str, str]) -> str:
    """``3 passed, 2 failed``"""
    counts = {outcome: sum(one == outcome for one in found.values()) for outcome in (PASSED, FAILED, SKIPPED)}
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) or "none"


def differing(
    first: Mapping[str, str], second: Mapping[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    """The tests that come out in two ways."""
    return {
        test: (first.get(test), second.get(test))
        for test in sorted({*first, *second})
        if first.get(test) != second.get(test)
    }
