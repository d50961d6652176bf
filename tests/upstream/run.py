"""``make upstream``: the change for expanded ids on a copy of the release, with our package off.

Runs in the environment of `changes.RELEASE`. Before and after the change: our processor suite for images, and
the unit test of the change. Prints a table; ends with 1 if the change does not do what it promises.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tests.lab import children, flags, models
from tests.lab.environments import CHECKOUT
from tests.upstream import cases, changes, outcomes
from tests.upstream.cases import CASES, OUTSIDE

SECONDS = 1200  # for the suite of one copy, on a busy machine
TEST_SECONDS = 600
# Whatever the environment says: our package stays off.
OFF: dict[str, str | None] = {"DEEPEYES_PATCH": None, "RELAX_DEEPEYES_QWEN_VL_PATCH": None}
BEFORE, AFTER = "before", "after"

Found = dict[str, dict[str, dict[str, str]]]


def environment(copy: Path | None, switch: str | None = None) -> dict[str, str | None]:
    """Of a child that sees a copy of SGLang, or the release itself."""
    path = [str(folder) for folder in (copy, CHECKOUT) if folder]
    return {**OFF, **flags.ENVIRONMENT, "DEEPEYES_PATCH": switch, "PYTHONPATH": os.pathsep.join(path)}


def suite(
    folder: Path, copy: Path | None, *options: str, switch: str | None = None, seconds: float = SECONDS
) -> Found:
    """Model -> way -> case -> what came of it. ``options``: those of `tests.upstream.cases`."""
    results = folder / "results.json"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-W", "ignore", "-m", "tests.upstream.cases", str(results), *options]
    children.run(command, folder / "cases.log", seconds, environment(copy, switch), quiet=True)
    said = json.loads(results.read_text())
    assert copy is None or Path(said["processor"]).is_relative_to(copy), said["processor"]
    assert said["switched on"] == (switch is not None)
    found: Found = said["found"]
    return found


def faults(found: Found, but: Collection[str] = ()) -> Iterator[str]:
    """What does not come out as it must, without the cases ``but``."""
    for kind, by_way in found.items():
        for way, rows in by_way.items():
            for case, came in rows.items():
                due = cases.expected(case, way)
                if due not in (None, came) and case not in but:
                    yield f"{kind}, {way}, {case}: {came}, and not {due}"


def main() -> int:
    version = flags.installed().version
    added = changes.added_lines(changes.EXPANDED)
    say(f"SGLang {version}, {changes.EXPANDED}: {added} lines added to the package")
    with tempfile.TemporaryDirectory(prefix="upstream-") as name:
        folder = Path(name)
        copies = {BEFORE: None, AFTER: changes.applied(folder / "changed", changes.EXPANDED)}
        say("our processor suite for images, package off")
        # Stock leaves requests unanswered in the other ways, each of them until its time is over.
        found = {BEFORE: suite(folder, None, "--one-way"), AFTER: suite(folder, copies[AFTER])}
        wrong = list(faults(found[AFTER]))
        show(found)
        say("the unit test of the change")
        tests = {when: unit_test(folder, copies[AFTER], copy) for when, copy in copies.items()}
        wrong += [f"the unit test: {one}" for one in tests[AFTER].items() if one[1] != outcomes.PASSED]
        if outcomes.FAILED not in tests[BEFORE].values():
            wrong.append("the unit test passes without the change")
    print("\n| tests | before | after |\n|---|---|---|")
    for what, counts in (
        ("our suite for images", {when: in_words(one) for when, one in found.items()}),
        ("the unit test of the change", {when: outcomes.counted(one) for when, one in tests.items()}),
    ):
        print(f"| {what} | {counts[BEFORE]} | {counts[AFTER]} |")
    print("\n(*) Not the matter of the change: the same comes of unexpanded ids, without the change.")
    for case, (_, why) in OUTSIDE.items():
        print(f"  {case}: {why}")
    print(f"  {cases.DRIFTS[0]}, with SGLANG_MM_AVOID_RETOKENIZE=0: SGLang tokenizes unexpanded ids again")
    for fault in wrong:
        say(f"NOT RIGHT: {fault}")
    say(f"{len(wrong)} wrong" if wrong else "as promised")
    return 1 if wrong else 0


def unit_test(folder: Path, changed: Path, copy: Path | None, name: str = changes.EXPANDED) -> dict[str, str]:
    """The unit tests of a change, which lie in ``changed``, on a copy or on the release."""
    tests = [changed / test for test in changes.unit_tests(name)]
    return outcomes.of(sys.executable, tests, changed, folder, environment(copy), TEST_SECONDS)


def show(found: Mapping[str, Found]) -> None:
    """One row for each case: what comes of it for each model; several words where the ways differ."""
    heads = [f"{kind}, {when}" for kind in models.KINDS for when in found]
    print(f"\n| request | {' | '.join(heads)} |\n|---{'|---' * len(heads)}|")
    for case in CASES:
        cells = [
            " / ".join(dict.fromkeys(rows[case] for rows in found[when][kind].values()))
            for kind in models.KINDS
            for when in found
        ]
        print(f"| {case}{' (*)' if case in OUTSIDE else ''} | {' | '.join(cells)} |")
    print(flush=True)


def in_words(found: Found) -> str:
    """How many of the cases for which the change promises something come out so."""
    promised = [
        (came, due)
        for by_way in found.values()
        for way, rows in by_way.items()
        for case, came in rows.items()
        if case not in OUTSIDE and (due := cases.expected(case, way)) is not None
    ]
    return f"{sum(came == due for came, due in promised)} of {len(promised)} right"


def say(what: str) -> None:
    print(f"upstream: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
