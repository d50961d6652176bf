"""Starts coverage in every interpreter of the lab, for `tests.coverage`; otherwise it does nothing.

`enable` puts a ``.pth`` file into an environment, which runs this file when an interpreter starts and
`FOLDER` is set. Servers are killed, and children end with ``os._exit``. So what was visited is saved every
half second, before ``os._exit`` and before a process replaces itself. coverage.py lies in a layer of its own,
and only CPython 3.11 is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "LAB_COVERAGE"  # where each process puts its data
LAYER = "LAB_COVERAGE_LAYER"  # where the package lies
# For a child that would notice: coverage.py imports modules and traces threads.
UNMEASURED = {FOLDER: ""}
DATA = "data"  # how the files are called, before a process's own suffix
SAVE_SECONDS = 0.5
# Before deepeyes_patch.pth in the alphabet: its start is measured, too.
NAME = "aa_lab_coverage.pth"


def enable(site_packages: Path, env: Mapping[str, str] = os.environ) -> None:
    """Measure the interpreters of this environment that get ``env``, if these variables say so."""
    if env.get(FOLDER):
        program = f"exec(compile(open({__file__!r}).read(), {__file__!r}, 'exec'), {{'__name__': 'start'}})"
        line = f"import os; os.environ.get({FOLDER!r}) and {program}\n"
        (site_packages / NAME).write_text(line, encoding="utf-8")


def _start() -> None:
    import atexit
    import threading

    layer = os.environ[LAYER]
    sys.path.append(layer)
    try:
        import coverage
    finally:
        sys.path.remove(layer)
    measured = coverage.Coverage(
        data_file=os.path.join(os.environ[FOLDER], DATA),
        data_suffix=True,
        branch=True,
        config_file=False,
        include=["*/deepeyes_patch/*"],
        omit=["*/tests/*"],
        messages=False,
    )
    measured.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured"])
    measured.start()
    lock = threading.Lock()

    def save() -> None:
        with lock:
            try:
                measured.save()
            except Exception as error:  # of a measurement, which must change no result
                with open(os.path.join(os.environ[FOLDER], "errors"), "a", encoding="utf-8") as file:
                    file.write(f"{os.getpid()}: {error!r}\n")

    def keep_saving() -> None:
        import time

        while True:
            time.sleep(SAVE_SECONDS)
            save()

    def go_on() -> None:
        threading.Thread(target=keep_saving, name="lab-coverage", daemon=True).start()

    def in_child() -> None:
        lock.release()
        go_on()

    def saving(function: Any) -> Any:
        def first(*arguments: Any, **named: Any) -> Any:
            save()
            return function(*arguments, **named)

        return first

    go_on()
    atexit.register(save)
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=in_child)
    for name in ("_exit", "execv", "execve"):
        setattr(os, name, saving(getattr(os, name)))


# `site` reads the files of a virtual environment twice.
if __name__ == "start" and sys.version_info[:2] == (3, 11) and not hasattr(sys, "_lab_coverage"):
    sys._lab_coverage = True  # type: ignore[attr-defined]
    _start()
