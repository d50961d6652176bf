"""``make nightly``: what it keeps, where it says that it stopped, and the tally; with made-up suites."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import cost, coverage, nightly, speeds
from tests.cost import Ended
from tests.interpreters import CHECKOUT

SECONDS = 60

MAKEFILE = """
.PHONY: good bad slow busy
good:
	@echo good >> ran
	@echo "SKIPPED [1] somewhere"
	@echo "12 passed, 1 skipped, 3 deselected in 1.50s"
bad:
	@echo bad >> ran
	@echo "1 failed, 2 passed in 0.10s"
	@exit 1
slow:
	@echo slow >> ran
	@{python} -c "import time; time.sleep({seconds})"
# Its child outlives it, and is busy for a second.
busy:
	@{python} -c "import subprocess, sys; subprocess.Popen([sys.executable, '-c', '''{work}'''])"
"""
WORK = "import time; end = time.process_time() + 1\nwhile time.process_time() < end: pass"


@pytest.fixture
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with made-up suites, in which everything is kept."""
    makefile = tmp_path / "Makefile"
    work = WORK.replace("\n", "\\n")
    makefile.write_text(MAKEFILE.format(python=sys.executable, seconds=10 * SECONDS, work=work))
    monkeypatch.setattr(cost, "MAKEFILE", makefile)
    monkeypatch.setattr(cost, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(nightly, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(nightly, "TALLY", tmp_path / "tally.md")
    monkeypatch.setattr(nightly, "digest", lambda: "the sources")
    monkeypatch.setattr(nightly, "WHOLE", ("good", "bad"))
    for name, result in (("environment", {}), ("forget", None), ("write_report", None)):
        monkeypatch.setattr(coverage, name, lambda *given, result=result: result)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(folder: Path) -> list[str]:
    return sorted((folder / "ran").read_text().split())


def test_all_suites_run_and_the_tally_says_what_failed(
    suites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nightly.run(["good", "bad"], fresh=False) == 1
    text = (suites / "tally.md").read_text()
    assert "14 passed, 1 skipped, 1 failed." in text
    assert "Suites that failed: bad." in text
    assert "| good | 12 passed, 1 skipped, 3 deselected |" in text
    assert text in capsys.readouterr().out


def test_what_has_passed_is_not_run_again_on_the_same_sources(
    suites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nightly.run(["good", "bad"], fresh=False)
    nightly.run(["good", "bad"], fresh=False)
    assert ran(suites) == ["bad", "bad", "good"]
    nightly.run(["good"], fresh=True)
    monkeypatch.setattr(nightly, "digest", lambda: "other sources")
    nightly.run(["good"], fresh=False)
    assert ran(suites) == ["bad", "bad", "good", "good", "good"]


def test_a_suite_of_tests_runs_in_two_parts(suites: Path) -> None:
    (suites / "Makefile").write_text("parted:\n\t@echo $(SPEED) >> ran\n\t@echo '2 passed in 0.1s'\n")
    nightly.run(["parted"], fresh=False)
    assert ran(suites) == sorted([speeds.TEST, speeds.ADDED])
    text = (suites / "tally.md").read_text()
    assert "4 passed." in text
    assert "| parted (test) | 2 passed |" in text
    nightly.run(["parted"], fresh=False)
    assert len(ran(suites)) == 2


PROGRAM = """
import sys
from pathlib import Path
from tests import cost, coverage, nightly, speeds
folder = Path(sys.argv[1])
cost.MAKEFILE, cost.LOGS = folder / "Makefile", folder / "logs"
nightly.STATE, nightly.TALLY = folder / "state.json", folder / "tally.md"
nightly.JOBS, nightly.WHOLE = 1, ("good", "slow", "bad")
coverage.environment = coverage.forget = coverage.write_report = lambda *given: {}
sys.argv[1:] = sys.argv[2:]
sys.exit(nightly.main())
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_where_it_stopped_and_leaves_nothing_running(
    how: signal.Signals, suites: Path
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(suites), "good", "slow", "bad"]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(
        command, cwd=suites, env=env, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as process:
        try:
            deadline = time.monotonic() + SECONDS
            while not (suites / "ran").exists() or "slow" not in ran(suites):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(how)
            said, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "stopped in: slow" in said
    assert "done: good" in said
    assert "not started: bad" in said
    kept = json.loads((suites / "state.json").read_text())
    assert [one["suite"] for one in kept["ended"]] == ["good"]
    assert not (suites / "tally.md").exists()
    assert not running(f"time.sleep({10 * SECONDS})")


def heed_interrupts() -> None:
    """A shell lets its background jobs ignore SIGINT, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def running(words: str) -> list[str]:
    """The command lines of processes that hold the words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in line:
            found.append(line)
    return found


def test_what_outlives_its_parent_is_counted(suites: Path) -> None:
    (ended,) = cost.together([("busy", "test")], jobs=1)
    assert ended.code == 0
    assert ended.cpu >= 1
    table = list(cost.table([ended]))
    assert table[2].startswith("| `busy` | - |")


def test_the_last_words_of_a_suite() -> None:
    log = (
        "....\n== 3 passed in 0.1s ==\nmake: something\n"
        "1 failed, 2 passed, 4 warnings in 61.5s (0:01:01)\nmake: ***\n"
    )
    assert cost.last_words(log) == "1 failed, 2 passed, 4 warnings in 61.5s"
    assert Ended("a", 1, 0, 0, cost.last_words(log)).tests == {"failed": 1, "passed": 2, "warnings": 4}
    assert cost.last_words("one\nall is well\n\nmake: Leaving\n") == "all is well"
    assert Ended("a", 0, 0, 0, "all is well").tests == {}
