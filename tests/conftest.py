"""``--speed``: which of the tests run. ``tests/speeds.py`` has the list."""

from __future__ import annotations

import pytest

from tests import speeds
from tests.lab.releases import RELEASES, TESTED


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


def _older_release() -> str | None:
    """The release of this environment; None for the newest, and for one that the lab does not know yet."""
    from tests.lab import flags

    version = flags.installed().version
    return version if version in RELEASES and version != TESTED[0] else None
