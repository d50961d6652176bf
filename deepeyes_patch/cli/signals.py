"""A command that is told to end takes its children and its temporary files along."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_ENDING = (signal.SIGTERM, signal.SIGHUP)
# Python ignores these, and a program that it starts would, too. `subprocess` does the same for its children.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Ended(BaseException):
    """A signal has told this process to end. ``code`` is the exit code that a shell shows then."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raise `Ended` for SIGTERM and SIGHUP. A signal that is ignored (``nohup``) stays so."""
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers there alone
        yield
        return
    numbers = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]
    try:
        for number in numbers:
            signal.signal(number, _raise)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise Ended(number)


def restore() -> None:
    """Set back what Python changed. For a process that is about to become another program."""
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
