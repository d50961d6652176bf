"""What the lab can install."""

from __future__ import annotations

import pytest

from tests.lab.releases import OTHER_TRANSFORMERS, RELEASES, TESTED


@pytest.mark.parametrize("name", OTHER_TRANSFORMERS)
def test_another_transformers(name: str) -> None:
    row = OTHER_TRANSFORMERS[name]
    pinned = RELEASES[row.version]
    assert row.version in TESTED
    assert row.transformers != pinned.transformers
    assert row.server_args == pinned.server_args
    packages = [requirement.partition("==")[0] for requirement in row.requirements]
    assert len(packages) == len(set(packages)), "a package is pinned twice"
