"""The picture of the errors of log-probs shows the figures of the table, and no other."""

from __future__ import annotations

import pytest

from tests.docs import chart
from tests.docs.pages import DOCS, LANGUAGES


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_picture_is_that_of_the_table(language: str) -> None:
    path = DOCS / "images" / f"smoke_error_{language}.svg"
    assert path.read_text(encoding="utf-8") == chart.picture(language), "run `python -m tests.docs.chart`"


def test_what_it_shows() -> None:
    """Every release of the table, stock and patched. The patched server is exact on each."""
    found = chart.measured()
    assert len(found) >= 3
    for kinds in found.values():
        assert set(kinds) == set(chart.KINDS)
        assert float(kinds["patched"]) < 1e-5
    worst = [
        float(kinds[kind]) for kinds in found.values() for kind in chart.KINDS[:2] if "of" not in kinds[kind]
    ]
    assert max(worst) > 0.1
