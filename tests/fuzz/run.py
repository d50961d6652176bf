"""``make fuzz``: random requests for the real processor class of one release, for minutes.

``python -m tests.fuzz.run RELEASE --minutes M --seed S`` prints a line a minute. Each round of requests has a
seed of its own, and on a failure hypothesis shrinks the request and the round's seed is printed:
``--seed S --rounds 1`` asks for the same requests again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter

from tests.lab import environments

ROUND = 200  # groups of requests; the clock is read between rounds


def fuzz(minutes: float, seed: int, rounds: int | None) -> None:
    """In a release's environment: raises what the first failing group raises."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    import sglang
    import torch

    from tests.lab import flags, models

    os.environ.update(flags.ENVIRONMENT)
    torch.set_num_threads(1)
    import deepeyes_patch
    from tests.fuzz import target

    deepeyes_patch.install(["processor"])
    print(f"SGLang {sglang.__version__}, {minutes:g} minutes, first seed {seed}", flush=True)
    begin = reported = time.monotonic()
    tally: Counter[str] = Counter()
    done = 0
    while (time.monotonic() - begin < minutes * 60) if rounds is None else done < rounds:
        for kind in models.KINDS:
            try:
                target.round_of(kind, seed + done, ROUND, tally)
            except BaseException:
                print(f"failed: {kind}, round of seed {seed + done}", flush=True)
                raise
        done += 1
        if time.monotonic() - reported > 60:
            reported = time.monotonic()
            print(f"  {reported - begin:4.0f} s, {done} rounds: {_words(tally)}", flush=True)
    print(f"clean: {time.monotonic() - begin:.0f} s, {done} rounds: {_words(tally)}", flush=True)


def _words(tally: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(tally.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", nargs="?", help="default: the release of this environment")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, help="instead of minutes")
    given = parser.parse_args()
    if given.release is None:
        fuzz(given.minutes, given.seed, given.rounds)
        return
    environments.ensure([environments.BASE, given.release])
    command = [str(environments.python_of(given.release)), "-m", "tests.fuzz.run", f"--seed={given.seed}"]
    command += [f"--minutes={given.minutes}"] if given.rounds is None else [f"--rounds={given.rounds}"]
    sys.exit(subprocess.run(command, cwd=environments.CHECKOUT, check=False).returncode)


if __name__ == "__main__":
    main()
