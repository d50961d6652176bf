"""``make nightly``: every suite in full, the matrix, load and fuzz; writes a tally for the documents.

``python3 -m tests.nightly SUITE ...`` runs two suites at a time, in this order. Each runs in two parts: what
``make test`` runs of it, then the rest. `tests.coverage` tells which branches of ours only the second part
visits. Interrupted, it says where it stopped. Started again on the same sources, it goes on there: parts that
have passed are not run again, unless ``--fresh`` is given. The tally is `TALLY`, in Markdown. Standard
library only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from tests import cost, coverage, speeds
from tests.cost import Ended, Part
from tests.lab.environments import CHECKOUT
from tests.lab.releases import OTHER_TRANSFORMERS, TESTED

JOBS = 2
STATE = CHECKOUT / ".lab" / "nightly.json"
TALLY = CHECKOUT / ".lab" / "nightly.md"
# A change in one of these makes older results void. The documents do not count: the matrix writes one.
SOURCES = (
    *("deepeyes_patch", "deepeyes_patch.pth", "deepeyes_patch.start"),
    *("tests", "Makefile", "pyproject.toml"),
)
# Suites that have no parts: `make test` runs all of it, or nothing. (It runs what it has of the frameworks in
# the suite e2e-0.5.23.)
WHOLE = (
    *coverage.UNMEASURED,
    *("e2e-0.5.3.post1", "e2e-0.5.16", "e2e-0.5.19", "frameworks-0.5.12.post1", "frameworks-0.5.23"),
    *(f"sglang-{name}" for name in OTHER_TRANSFORMERS),
    *(f"upstream-tests-{name}" for name in TESTED),
)
NO_RESULT = ("deselected", "warning", "warnings")


def parts(suites: Sequence[str]) -> list[Part]:
    """What is run, in order: of a suite of tests what ``make test`` runs, and apart from it the rest."""
    found: list[Part] = []
    for suite in suites:
        whole = suite in WHOLE
        found += [(suite, speed) for speed in ([speeds.NIGHTLY] if whole else [speeds.TEST, speeds.ADDED])]
    return found


def run(suites: Sequence[str], fresh: bool) -> int:
    done = {} if fresh else passed_before()
    wanted = parts(suites)
    left = [part for part in wanted if part not in done]
    for part in wanted:
        if part in done:
            say(f"{named(part)}: has passed already on these sources")
    running: set[Part] = set()

    def started(part: Part) -> None:
        running.add(part)
        say(f"{named(part)}: started")

    try:
        if not done:
            coverage.forget()
        with contextlib.closing(cost.together(left, JOBS, started, coverage.environment)) as ended:
            for one in ended:
                part = one.suite, one.speed
                running.discard(part)
                done[part] = one
                keep(done)
                log = cost.log_of(*part)
                how = "passed" if one.code == 0 else f"FAILED, see {log}"
                say(f"{named(part)}: {how}; {one.said}; {one.wall / 60:.0f} min")
    except KeyboardInterrupt:
        say("interrupted; servers are stopped")
        say(f"  stopped in: {listed(running)}")
        say(f"  done: {listed(done)}")
        say(f"  not started: {listed(p for p in left if p not in done and p not in running)}")
        say("`make nightly` goes on there")
        return 130
    ordered = [done[part] for part in wanted]
    TALLY.write_text("\n".join(tally(ordered)) + "\n", encoding="utf-8")
    print(f"\n{TALLY.read_text(encoding='utf-8')}", flush=True)
    coverage.write_report()
    return 1 if any(one.code for one in ordered) else 0


def named(part: Part) -> str:
    suite, speed = part
    return suite if speed == speeds.NIGHTLY else f"{suite} ({speed})"


def listed(some: Iterable[Part]) -> str:
    return ", ".join(sorted(map(named, some))) or "nothing"


def passed_before() -> dict[Part, Ended]:
    """Parts that have passed on the same sources."""
    if not STATE.exists():
        return {}
    state = json.loads(STATE.read_text(encoding="utf-8"))
    if state["sources"] != digest():
        return {}
    ended = [Ended(**one) for one in state["ended"]]
    return {(one.suite, one.speed): one for one in ended if one.code == 0}


def keep(done: dict[Part, Ended]) -> None:
    state = {"sources": digest(), "ended": [asdict(one) for one in done.values()]}
    half = STATE.with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps(state, indent=1), encoding="utf-8")
    half.rename(STATE)


def digest() -> str:
    whole = hashlib.sha256()
    for name in SOURCES:
        place = CHECKOUT / name
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in files:
            if path.is_file() and "__pycache__" not in path.parts:
                whole.update(f"{path.relative_to(CHECKOUT)}\0".encode())
                whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:12]


def tally(ended: Sequence[Ended]) -> Iterator[str]:
    counted: dict[str, int] = {}
    for one in ended:
        for word, count in one.tests.items():
            counted[word] = counted.get(word, 0) + count
    words = ", ".join(f"{count} {word}" for word, count in counted.items() if word not in NO_RESULT)
    failed = [named((one.suite, one.speed)) for one in ended if one.code]
    yield f"`make nightly`, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit()}: {words}."
    yield f"Suites that failed: {', '.join(failed) or 'none'}."
    yield ""
    yield "| suite | result | CPU minutes | minutes |"
    yield "|---|---|---|---|"
    for one in ended:
        result = one.said.partition(" in ")[0] if one.tests else one.said
        yield f"| {named((one.suite, one.speed))} | {result} | {one.cpu / 60:.0f} | {one.wall / 60:.0f} |"
    cpu, wall = (sum(getattr(one, name) for one in ended) / 60 for name in ("cpu", "wall"))
    yield f"| all | {words} | {cpu:.0f} | {wall:.0f}, {JOBS} at a time |"


def commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", *SOURCES)
    return f"{git('rev-parse', '--short=12', 'HEAD') or 'unknown'}{' with changes' if changed else ''}"


def say(what: str) -> None:
    print(f"nightly: {what}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+", metavar="SUITE")
    parser.add_argument("--fresh", action="store_true", help="run again what has passed")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run(given.suites, given.fresh)


if __name__ == "__main__":
    sys.exit(main())
