"""The list of speeds names tests that exist, and each test runs where the list says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import speeds
from tests.interpreters import CHECKOUT
from tests.lab.releases import RELEASES, TESTED
from tests.speeds import ADDED, ALSO, CHECK, NIGHTLY, SPEEDS, TABLE, TEST

ROWS = [*TABLE, *(row for rows in ALSO.values() for row in rows)]
SECONDS = 60


def functions(file: Path) -> set[str]:
    """As pytest names them: ``FUNCTION``, or ``CLASS::FUNCTION``."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("row", ROWS)
def test_a_row_names_what_exists(row: str) -> None:
    place, _, name = row.partition("::")
    assert (CHECKOUT / place).exists()
    if name:
        assert name in functions(CHECKOUT / place)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.speed == NIGHTLY])
def test_what_only_nightly_runs_says_why(name: str) -> None:
    assert len(TABLE[name].why.split()) >= 5


def test_the_releases_exist() -> None:
    assert set(ALSO) <= set(RELEASES)
    assert TESTED[0] not in ALSO, "the newest runs all that make test runs"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "tests/sglang/test_a.py": speeds.Row(CHECK),
        "tests/sglang/test_a.py::test_slow": speeds.Row(TEST),
        "tests/sglang/test_b.py": speeds.Row(NIGHTLY, "a reason"),
        "tests/sglang/test_b.py::test_quick": speeds.Row(CHECK),
    }
    monkeypatch.setattr(speeds, "TABLE", rows)
    monkeypatch.setattr(speeds, "ALSO", {"0.5.3": ("tests/sglang/test_c.py",)})


@pytest.mark.parametrize(
    ("test", "newest", "older", "named"),
    [
        ("tests/sglang/test_a.py::test_it[x::y]", {CHECK, TEST}, {CHECK, TEST}, {CHECK, TEST}),
        ("tests/sglang/test_a.py::test_slow[1]", {TEST}, set(), set()),
        ("tests/sglang/test_b.py::test_it", set(), set(), set()),
        ("tests/sglang/test_b.py::test_quick", {CHECK, TEST}, {CHECK, TEST}, {CHECK, TEST}),
        ("tests/sglang/test_c.py::test_it", {TEST}, set(), {TEST}),
        ("tests/sglang/test_ab.py::test_it", {TEST}, set(), set()),
    ],
)
def test_where_a_test_runs(
    test: str, newest: set[str], older: set[str], named: set[str], table: None
) -> None:
    for release, expected in ((None, newest), ("0.5.9", older), ("0.5.3", named)):
        found = {speed for speed in SPEEDS if speeds.runs(test, speed, release)}
        assert found == expected | {NIGHTLY} | (set() if TEST in expected else {ADDED}), release


def test_pytest_leaves_the_others_out(tmp_path: Path) -> None:
    """The option, on a suite of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    counts = {}
    for speed in (CHECK, TEST, NIGHTLY, ADDED):
        done = subprocess.run(
            [*command, f"--speed={speed}", "tests/unit/test_speeds.py", "tests/install/test_packaging.py"],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        counts[speed] = len(re.findall(r"^tests/", done.stdout, re.MULTILINE))
    assert counts[CHECK] < counts[TEST]
    assert counts[TEST] + counts[ADDED] == counts[NIGHTLY]


def suites(speed: str) -> list[str]:
    """What the Makefile runs at a speed."""
    command = ["make", "--no-print-directory", f"SPEED={speed}", "suites"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=SECONDS, check=True)
    return done.stdout.split()


def test_each_speed_runs_what_the_faster_one_runs() -> None:
    check, test, nightly = ({*suites(speed)} for speed in (CHECK, TEST, NIGHTLY))
    assert check - {"links"} < test < nightly
    assert "docs" in test, "the links are part of it"
    assert {f"sglang-{TESTED[0]}", f"sglang-{TESTED[-1]}"} <= check, "the newest and the oldest"
    assert {f"sglang-{release}" for release in TESTED} <= test
    assert {"matrix", "load", "fuzz"} <= nightly
