"""The pictures of the errors of log-probs show the figures of the tables, and no others."""

from __future__ import annotations

import pytest

from tests.docs import chart, turns
from tests.docs.pages import DOCS, LANGUAGES


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", chart.PICTURES)
def test_the_picture_is_that_of_the_table(name: str, language: str) -> None:
    path = DOCS / "images" / f"{name}_{language}.svg"
    drawn = chart.PICTURES[name](language)
    assert path.read_text(encoding="utf-8") == drawn, "run `python -m tests.docs.chart`"


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


def test_the_errors_of_the_turns_are_those_of_the_rollouts() -> None:
    """The largest of the four turns stands in the other table, for each release and kind."""
    rollouts = chart.measured()
    found = turns.measured()
    assert set(found) == set(rollouts)
    for release, kinds in found.items():
        assert set(kinds) == set(turns.KINDS)
        for kind, values in kinds.items():
            assert len(values) == 4
            numbers = [float(value) for value in values if value[0].isdigit()]
            if numbers:
                assert max(numbers) == float(rollouts[release][kind]), (release, kind)
            else:
                assert values == ["HTTP 500", "-", "-", "-"]
                assert "of" in rollouts[release][kind]
