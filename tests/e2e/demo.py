"""``python -m tests.e2e.demo RELEASE ...``: the real SGLang, stock and patched, on rollout requests.

Needs no GPU. Ends with 0 only if every patched answer is exact: HTTP 200, the caller's own tokens, and the
log-probs that ``transformers`` gives to them. ``make demo`` sets everything up first.

Standard library only: each release has its own environment, in which `tests.e2e.measure` runs.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab import children
from tests.lab.children import ChildFailed
from tests.lab.environments import python_of

RELEASE_SECONDS = 1200

Entry = dict[str, Any]

LEGEND = """\
short ids: one placeholder for each image; expanded ids: as many as the image has tokens.
drifted: ids as a model samples them, which tokenizing their text does not give back.
rollout: each turn sends back what the model sampled before, with one image more, expanded.
sent: token ids in the request; due: those that the model must see, according to transformers.
used: prompt_tokens that SGLang reports; error: largest difference from transformers' log-probs for
what SGLang generated, given the ids that are due. bf16 noise is below 0.008. The rope of 0.5.3
gives image tokens wrong positions, whatever the request: the error is all that shows it."""


def main(releases: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    start = time.monotonic()
    tables = {release: measure(release) for release in releases}
    print()
    for line in table(tables):
        print(line)
    exact = all(e["exact"] for entries in tables.values() for e in entries if e["server"] == "patched")
    print()
    print(LEGEND)
    verdict = "every patched answer is exact" if exact else "A PATCHED ANSWER IS NOT EXACT"
    print(f"\n{verdict}; {time.monotonic() - start:.0f} s")
    return 0 if exact else 1


def measure(release: str) -> list[Entry]:
    """Run `tests.e2e.measure` in a release's environment."""
    print(f"SGLang {release}", flush=True)
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        results, log = Path(folder) / "results.json", Path(folder) / "log.txt"
        try:
            children.run([python_of(release), "-m", "tests.e2e.measure", results], log, RELEASE_SECONDS)
        except ChildFailed as error:
            raise SystemExit(f"{error}\nSGLang {release} failed, see above") from None
        entries: list[Entry] = json.loads(results.read_text())
        return entries


def table(tables: dict[str, list[Entry]]) -> Iterator[str]:
    """At most 100 columns: a row for each request, stock on the left and patched on the right."""
    yield f"{'':39}{'---------- stock ----------':<33}{'--------- patched ---------'}"
    columns = f"{'HTTP':>4}{'used':>7}{'error':>9}"
    yield f"{'request':<23}{'sent':>6}{'due':>6}    {columns:<33}{columns}"
    for release, entries in tables.items():
        yield f"SGLang {release}"
        half = len(entries) // 2
        for stock, patched in zip(entries[:half], entries[half:], strict=True):
            sent = "-" if patched["sent"] is None else patched["sent"]
            head = f"  {patched['title']:<21}{sent:>6}{patched['due']:>6}"
            yield f"{head}    {cells(stock):<33}{cells(patched)}".rstrip()


def cells(entry: Entry) -> str:
    if entry["status"] is None:
        return "   -      -        -  no answer"
    if entry["status"] != 200:
        return f"{entry['status']:>4}      -        -  FAILS"
    word = "exact" if entry["exact"] else "WRONG"
    return f"{entry['status']:>4}{entry['tokens_used']:>7}{entry['error']:>9.4f}  {word}"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\ninterrupted; the servers are stopped")
        sys.exit(130)
