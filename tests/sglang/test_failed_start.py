"""A start that is stopped ends and says why, also as the target of a child of multiprocessing.

Python waits there for the children of the child before it prints the traceback. tests/e2e has whole servers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepeyes_patch.settings import SWITCH
from tests.lab import models
from tests.lab.environments import CHECKOUT

SECONDS = 120
SLEEP = 600  # of the grandchild, which stands for a scheduler

PROGRAM = f"""
import multiprocessing, os, sys, time
import psutil

def sleep():
    time.sleep({SLEEP})

def start(switched_on):
    os.environ.pop("DEEPEYES_PATCH")
    import deepeyes_patch
    from tests.lab import processors
    multiprocessing.Process(target=sleep).start()
    cls = processors.processor_class()
    owner = next(c for c in cls.__mro__ if "_process_and_collect_mm_items" in vars(c))
    if switched_on:
        delattr(owner, "_process_and_collect_mm_items")
        deepeyes_patch.install(["processor"])
        processors.build("qwen3_vl")
    raise RuntimeError("SGLang's own")

if __name__ == "__main__":
    method, switched_on, seconds = sys.argv[1:]
    process = multiprocessing.get_context(method).Process(target=start, args=(switched_on == "on",))
    process.start()
    process.join(float(seconds))
    print("ended with", process.exitcode, flush=True)
    family = psutil.Process().children(recursive=True)
    for one in family:
        one.kill()
"""


def run(method: str, switch: str, folder: Path, seconds: float) -> tuple[str, str]:
    models.ensure("qwen3_vl")
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), method, switch, str(seconds)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1", SWITCH: "off"},
        capture_output=True,
        text=True,
        timeout=SECONDS + 60,
        check=False,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_it_ends_and_says_why(method: str, tmp_path: Path) -> None:
    said, log = run(method, "on", tmp_path, SECONDS)
    assert "ended with 1" in said, log[-3000:]
    assert log.count("problem: _process_and_collect_mm_items") == 2, "in the log, and in the traceback"
    assert "Traceback (most recent call last)" in log


def test_any_other_error_there_is_never_heard(tmp_path: Path) -> None:
    said, log = run("spawn", "off", tmp_path, 40)
    assert "ended with None" in said, said
    assert "SGLang's own" not in log.partition("Traceback")[0]
