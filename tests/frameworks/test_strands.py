"""strands-sglang: it sends ids with one placeholder an image, and data URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks import judging
from tests.frameworks.driving import Child
from tests.frameworks.judging import PICTURES
from tests.frameworks.wire import Wire


@pytest.fixture
def child(tmp_path: Path) -> Child:
    return Child("strands", tmp_path)


def test_patched_is_exact(child: Child, folder: Path, to_patched: Wire) -> None:
    report = child.run(folder, to_patched.url, PICTURES, judging.placeholders(folder))
    asked = to_patched.generated()
    episode = judging.expanded(folder, report, PICTURES)
    judging.assert_same_ids(episode, asked)
    errors = judging.errors(folder, episode, PICTURES)
    assert float(errors.max()) < judging.NOISE, errors
