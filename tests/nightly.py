"""``make nightly``: every suite in full, the matrix, load and fuzz; writes a tally for the documents.

``python3 -m tests.nightly SUITE ...`` runs two suites at a time, in this order. Interrupted, it says where
it stopped. Started again on the same sources, it goes on there: suites that have passed are not run again,
unless ``--fresh`` is given. The tally is `TALLY`, in Markdown. Standard library only.
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from tests import cost, speeds
from tests.cost import Ended
from tests.lab.environments import CHECKOUT

JOBS = 2
STATE = CHECKOUT / ".lab" / "nightly.json"
TALLY = CHECKOUT / ".lab" / "nightly.md"
# A change in one of these makes older results void. The documents do not count: the matrix writes one.
SOURCES = (
    *("deepeyes_patch", "deepeyes_patch.pth", "deepeyes_patch.start"),
    *("tests", "Makefile", "pyproject.toml"),
)
NO_RESULT = ("deselected", "warning", "warnings")


def run(suites: Sequence[str], fresh: bool) -> int:
    done = {} if fresh else passed_before()
    left = [suite for suite in suites if suite not in done]
    for suite in suites:
        if suite in done:
            say(f"{suite}: has passed already on these sources")
    running: set[str] = set()

    def started(suite: str) -> None:
        running.add(suite)
        say(f"{suite}: started")

    try:
        with contextlib.closing(cost.together(left, speeds.NIGHTLY, JOBS, started)) as ended:
            for one in ended:
                running.discard(one.suite)
                done[one.suite] = one
                keep(done)
                log = cost.log_of(one.suite, speeds.NIGHTLY)
                how = "passed" if one.code == 0 else f"FAILED, see {log}"
                say(f"{one.suite}: {how}; {one.said}; {one.wall / 60:.0f} min")
    except KeyboardInterrupt:
        say("interrupted; servers are stopped")
        say(f"  stopped in: {', '.join(sorted(running)) or 'nothing'}")
        say(f"  done: {', '.join(done) or 'nothing'}")
        say(f"  not started: {', '.join(s for s in left if s not in done and s not in running) or 'nothing'}")
        say("`make nightly` goes on there")
        return 130
    ordered = [done[suite] for suite in suites]
    TALLY.write_text("\n".join(tally(ordered)) + "\n", encoding="utf-8")
    print(f"\n{TALLY.read_text(encoding='utf-8')}", flush=True)
    return 1 if any(one.code for one in ordered) else 0


def passed_before() -> dict[str, Ended]:
    """Suites that have passed on the same sources, by name."""
    if not STATE.exists():
        return {}
    state = json.loads(STATE.read_text(encoding="utf-8"))
    if state["sources"] != digest():
        return {}
    return {one["suite"]: Ended(**one) for one in state["ended"] if one["code"] == 0}


def keep(done: dict[str, Ended]) -> None:
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
    failed = [one.suite for one in ended if one.code]
    yield f"`make nightly`, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit()}: {words}."
    yield f"Suites that failed: {', '.join(failed) or 'none'}."
    yield ""
    yield "| suite | result | CPU minutes | minutes |"
    yield "|---|---|---|---|"
    for one in ended:
        result = one.said.partition(" in ")[0] if one.tests else one.said
        yield f"| `{one.suite}` | {result} | {one.cpu / 60:.0f} | {one.wall / 60:.0f} |"
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
