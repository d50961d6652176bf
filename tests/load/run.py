"""``make load``: thousands of requests for one patched server, a tenth of them malformed.

``python -m tests.load.run [RELEASE] --requests N --concurrency C --seed S`` prints what came of each kind,
and what the server's processes held in memory. The same seed asks for the same requests in the same order.
Ends with an error unless every good answer is that of ``transformers`` and every malformed one is refused.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter

from tests.lab import environments

RELEASE = "0.5.23"
END_SECONDS = 30


def run(requests: int, concurrency: int, seed: int) -> int:
    """In a release's environment: 0 if all is well."""
    import sglang
    import torch

    from tests.e2e import shapes
    from tests.lab import models, server
    from tests.load import drive, good, memory

    torch.set_num_threads(1)  # the server has its own
    folder = models.ensure("qwen3_vl")
    print(
        f"SGLang {sglang.__version__}: {requests} requests, {concurrency} at a time, seed {seed}", flush=True
    )
    planned = drive.plan(folder, requests, seed)
    held = []
    with server.serve(folder, env=shapes.PATCHED) as running:
        # What every server allocates with its first requests is there before the first look.
        warm = drive.load(running.url, folder, good.pool(folder), concurrency)

        def look() -> None:
            held.append(memory.resident(running.pid))

        look()
        report = drive.load(running.url, folder, planned, concurrency, look)
        look()
        ended = server.ends(running, END_SECONDS)
    print(f"\n{report.seconds:.0f} s, the slowest answer after {report.slowest:.1f} s\n")
    _table("as transformers", report.served)
    _table("refused", report.refused)
    _table("upstream's own", report.upstreams)
    print(f"\n| RSS, MiB {'':11}|  start | middle |    end |\n|{'-' * 22}|{'-' * 8}|{'-' * 8}|{'-' * 8}|")
    for role in held[0]:
        print(f"| {role:20} | " + " | ".join(f"{one.get(role, 0):6.0f}" for one in held) + " |")
    problems = [*warm.problems, *report.problems]
    if ended is None:  # it waits for requests that it takes for unfinished
        problems.append(f"the server did not end within {END_SECONDS} s of SIGTERM")
    else:
        print(f"\nthe server ended {ended:.0f} s after SIGTERM")
    print("\n" + ("\n".join(problems) if problems else "every answer is as it should be"), flush=True)
    return 1 if problems else 0


def _table(title: str, counted: Counter[str]) -> None:
    print(f"{title}: {sum(counted.values())}")
    for kind, count in sorted(counted.items()):
        print(f"  {count:5}  {kind}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", nargs="?", default=RELEASE)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        sys.exit(run(given.requests, given.concurrency, given.seed))
    environments.ensure([environments.BASE, given.release])
    command = [str(environments.python_of(given.release)), "-m", "tests.load.run", given.release, "--inside"]
    command += [f"--{name}={getattr(given, name)}" for name in ("requests", "concurrency", "seed")]
    sys.exit(subprocess.run(command, cwd=environments.CHECKOUT, check=False).returncode)


if __name__ == "__main__":
    main()
