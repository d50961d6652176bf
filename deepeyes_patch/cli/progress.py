"""What a command is doing, on one line of stderr. Nothing is written unless stderr is a terminal."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from deepeyes_patch.cli.output import takes_codes

STEP = 0.2  # seconds between two looks at the children


class Progress:
    """A context in which `show` rewrites the line. The line is gone when the context ends."""

    def __init__(self) -> None:
        self._is_shown = takes_codes(sys.stderr)
        self._start = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        if self._is_shown:
            line = f"{time.monotonic() - self._start:4.0f} s  {text}"
            room = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line[:room]}", end="", file=sys.stderr, flush=True)

    def wait(
        self, children: Sequence[subprocess.Popen[Any]], seconds: float, text: Callable[[], str]
    ) -> bool:
        """Wait for all children, and show ``text()`` meanwhile. Return whether they ended in time."""
        end = time.monotonic() + seconds
        while any(child.poll() is None for child in children):
            if time.monotonic() > end:
                return False
            self.show(text())
            time.sleep(STEP)
        return True
