"""Start child interpreters and check whether they read our start-up file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

SECONDS = 20  # time limit for one child

LIVE, OFF, BROKEN, FAILED = "live", "off", "broken", "failed"

# The line with the answer begins with this mark: a sitecustomize or another .pth file may print lines too.
_MARK = "deepeyes-patch: "

# A child runs this code. It prints "live" if our finder is on sys.meta_path, "broken" if the finder could not
# load what it hands over to, else "off".
_LOOK = f"""
import sys
state = "off"
if any(type(f).__name__ == "SGLangFinder" for f in sys.meta_path):
    try:
        import deepeyes_patch.bootstrap
        state = "live"
    except Exception:
        state = "broken"
print("{_MARK}" + state, flush=True)
"""

# Runs `_LOOK` in a spawned child, which inherits the flags of this interpreter.
_SPAWN = f"""
if __name__ == "__main__":
    import multiprocessing
    child = multiprocessing.get_context("spawn").Process(target=exec, args=({_LOOK!r},))
    child.start()
    child.join()
"""

_FIND = f"""
import importlib.machinery
state = "found" if importlib.machinery.PathFinder.find_spec("deepeyes_patch") else "missing"
print("{_MARK}" + state, flush=True)
"""


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process, with the switch on and with ``changes``."""
    return {**os.environ, "DEEPEYES_PATCH": "1", **changes}


def start_children() -> dict[str, subprocess.Popen[str] | None]:
    """Start a fresh interpreter, one that spawns a child, and one with each flag. `answers` reads them."""
    questions: dict[str, list[str]] = {
        "fresh": ["-c", _LOOK],
        "spawn": ["-c", _SPAWN],
        "-I": ["-I", "-c", _LOOK],
        "-E": ["-E", "-c", _LOOK],
        "-S": ["-S", "-c", _LOOK],
    }
    return {name: _start([sys.executable, *question], {}) for name, question in questions.items()}


def answers(children: Mapping[str, subprocess.Popen[str] | None]) -> dict[str, str]:
    """Whether the hooks are live in each of `start_children`."""
    return {name: _state(child) for name, child in children.items()}


def look(python: str, flags: Sequence[str], changes: Mapping[str, str]) -> str:
    """Whether the hooks are live in that Python with those flags and variables."""
    return _state(_start([python, *flags, "-c", _LOOK], changes))


def has_package(python: str, flags: Sequence[str], changes: Mapping[str, str]) -> bool:
    """Whether that Python can import ``deepeyes_patch``."""
    return _answer(_start([python, *flags, "-c", _FIND], changes)) == "found"


def _start(command: Sequence[str], changes: Mapping[str, str]) -> subprocess.Popen[str] | None:
    try:
        return subprocess.Popen(
            command,
            env=environment(changes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError:
        return None


def _answer(child: subprocess.Popen[str] | None) -> str:
    """The text that a child printed after the mark; an empty string if the child failed."""
    if child is None:
        return ""
    try:
        output, _ = child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return ""
    marked = [line for line in output.splitlines() if line.startswith(_MARK)]
    return marked[-1][len(_MARK) :] if marked else ""


def _state(child: subprocess.Popen[str] | None) -> str:
    answer = _answer(child)
    return answer if answer in (LIVE, OFF, BROKEN) else FAILED
