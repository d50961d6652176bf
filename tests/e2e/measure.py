"""``python -m tests.e2e.measure FILE``: one release's part of the demo, inside that release's environment.

Asks a stock server and a patched one, and writes what came of it to FILE as JSON. Standard output is the
progress, for people.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.e2e import shapes
from tests.e2e.shapes import SHAPES, Sent, Verdict
from tests.lab import models, server
from tests.lab.client import Answer

SERVERS = {"stock": shapes.STOCK, "patched": shapes.PATCHED}

# What the table calls them, and which shape they are.
ROWS = (
    ("text prompt", "text"),
    ("short ids", "short"),
    ("short ids, drifted", "short, drifted"),
    ("expanded ids", "expanded"),
    ("expanded ids, drifted", "expanded, drifted between"),
)


def exchanges(folder: Path, url: str) -> Iterator[tuple[str, Sent, Answer | None]]:
    for title, name in ROWS:
        sent = SHAPES[name](folder)
        yield title, sent, shapes.ask(url, sent)
    for turn, (sent, answer) in enumerate(shapes.rollout(folder, url), start=1):
        yield f"rollout, turn {turn} of {len(shapes.TURNS)}", sent, answer


def main(results: Path) -> None:
    torch.set_num_threads(1)  # the server needs the cores
    # Interrupted in any way, the server is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report("making the tiny model")
    folder = models.ensure("qwen3_vl")
    entries: list[dict[str, Any]] = []
    for name, env in SERVERS.items():
        report(f"{name} server: starting")
        with server.serve(folder, env=env) as running:
            report(f"{name} server: is up")
            for title, sent, answer in exchanges(folder, running.url):
                verdict = shapes.judge(folder, sent, answer)
                report(f"{name} server: {title}: {in_words(verdict)}")
                entries.append(
                    {
                        "server": name,
                        "title": title,
                        "sent": sent.tokens,
                        "due": len(sent.expected_ids),
                        **asdict(verdict),
                    }
                )
    results.write_text(json.dumps(entries))


_begin = time.monotonic()


def report(what: str) -> None:
    """A line on the screen, with the seconds since the start."""
    print(f"  {time.monotonic() - _begin:5.0f} s  {what}", flush=True)


def in_words(verdict: Verdict) -> str:
    if verdict.status is None:
        return "no answer"
    if verdict.status != 200:
        return f"HTTP {verdict.status}"
    word = "exact" if verdict.exact else "WRONG"
    return f"{word}, {verdict.tokens_used} tokens, log-probs off by {verdict.error:.4f} at most"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
