"""``--speed``: which of the tests run (``tests/speeds.py`` has the list). And a bound on each of them."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest

from tests import speeds
from tests.lab.releases import RELEASES, TESTED

# No test takes this long. One that hangs ends the run, and says where it hangs.
HANG_SECONDS = 900
_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # while a test runs, pytest captures the other one


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--speed",
        choices=speeds.SPEEDS,
        default=speeds.NIGHTLY,
        help="run what `make check`, `make test` or `make nightly` runs (default: nightly, which is all)",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    speed = config.getoption("--speed")
    kept, left = [], []
    for item in items:
        of_release = item.nodeid.startswith(speeds.OF_A_RELEASE)
        release = _older_release() if of_release else None
        (kept if speeds.runs(item.nodeid, speed, release) else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    nothing = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    if nothing and session.config.getoption("--speed") == speeds.ADDED:  # `make test` runs all of this suite
        session.exitstatus = pytest.ExitCode.OK


def _older_release() -> str | None:
    """The release of this environment; None for the newest, and for one that the lab does not know yet."""
    from tests.lab import flags

    version = flags.installed().version
    return version if version in RELEASES and version != TESTED[0] else None
