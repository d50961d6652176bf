"""Many requests at the same time, a tenth of them malformed; ``make load`` asks for thousands."""

from __future__ import annotations

from pathlib import Path

from tests.lab.server import Server
from tests.load import drive

REQUESTS = 150
CONCURRENCY = 16
SEED = 7


def test_good_ones_are_exact_and_bad_ones_refused(folder: Path, patched: Server) -> None:
    planned = drive.plan(folder, REQUESTS, SEED)
    report = drive.load(patched.url, folder, planned, CONCURRENCY)
    assert not report.problems, "\n".join(report.problems)
    assert report.served.total() + report.refused.total() + report.upstreams.total() == REQUESTS
    assert report.refused.total() > REQUESTS // 20
