"""Servers that are asked for the log-probs of prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.lab import server
from tests.lab.server import Server


def serve(
    shared: str, switch: Mapping[str, str | None], on_a_cpu: Mapping[str, str], request: pytest.FixtureRequest
) -> Iterator[Server]:
    """The server of the fixture ``shared``; where that cannot score on a CPU, one of its own that can."""
    if not on_a_cpu:
        yield request.getfixturevalue(shared)
        return
    with server.serve(request.getfixturevalue("folder"), env={**switch, **on_a_cpu}) as running:
        yield running
