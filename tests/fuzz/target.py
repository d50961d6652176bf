"""One round: as many groups of requests as are asked for, drawn from a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz import subject
from tests.fuzz.requests import Drawn
from tests.lab import models
from tests.sglang import ways


def round_of(kind: models.Kind, number: int, groups: int, tally: Counter[str]) -> None:
    """Up to three requests at the same time in each group; the tally counts what was due to them.

    Raises what the smallest failing group raises.
    """
    about = subject.subject(kind)

    @seed(number)
    @settings(
        max_examples=groups,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(ways.ways()), st.lists(about.requests(), min_size=1, max_size=3))
    def ask(way: str, group: Sequence[Drawn]) -> None:
        subject.check(about, way, group)
        for drawn in group:
            tally["refused" if subject.prepare(about, drawn)[1].is_refused else "served"] += 1

    ask()
