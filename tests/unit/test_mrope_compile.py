"""Our Triton kernels, compiled for each card without a GPU: spills are a failure."""

from __future__ import annotations

import os
import subprocess
import sys


def test_no_card_spills() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.mrope_compile"],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 1 + 3 * 5
