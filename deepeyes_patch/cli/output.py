"""Where the commands write, and what is said if stdout takes nothing or nobody reads it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class Unwritable(Exception):
    """stdout does not take the answer: the disk is full, or stdout is closed."""


class Unread(Exception):
    """The reader of stdout, such as ``head``, has closed the pipe."""


class Output:
    """stdout. Its errors are `Unwritable` and `Unread`, so they are not taken for other errors.

    ``stream`` is None if this process was started with stdout closed.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        # The encoding may lack letters of a path or of another process's command line.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return is_terminal(self._stream)

    def write(self, text: str) -> int:
        if self._stream is None:
            raise Unwritable("it is closed")
        with _plain_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        if self._stream is not None:
            with _plain_errors():
                self._stream.flush()


class Complaints(Output):
    """stderr. If it takes nothing, the exit code must be enough."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except (Unread, Unwritable):
            _discard(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except (Unread, Unwritable):
            _discard(self._stream)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise Unread from error
    except OSError as error:
        raise Unwritable(error.strerror) from error


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Replace stdout and stderr by `Output` and `Complaints`, and flush both, also where argparse exits."""
    stream = sys.stdout
    shown, complaints = Output(stream), Complaints(sys.stderr)
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(complaints):
            try:
                yield
            finally:
                complaints.flush()
                shown.flush()
    except (Unread, Unwritable):
        _discard(stream)
        raise


def complain(text: str) -> None:
    """Write a line on stderr."""
    print(text, file=Complaints(sys.stderr), flush=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads the stream. It is None if this process was started with it closed."""
    return stream is not None and stream.isatty()


def takes_codes(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal that understands codes for colours and for the cursor."""
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def _discard(stream: TextIO | None) -> None:
    """Lose what the stream still holds: Python would complain about it when it exits."""
    with contextlib.suppress(OSError, AttributeError):  # no file descriptor behind it
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())  # type: ignore[union-attr]
        os.close(descriptor)
