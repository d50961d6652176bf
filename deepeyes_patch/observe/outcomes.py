"""What became of each repair in this process, for `status`, the record, and the line in SGLang's log.

This module keeps the failure of a repair. A post-import hook does not raise it: SGLang turns an exception
during the import of one of its processor modules into a warning and goes on. The failure is raised later, at
a point where it stops SGLang.
"""

from __future__ import annotations

import contextlib
import logging
import os

from deepeyes_patch import __version__, bootstrap, settings
from deepeyes_patch.errors import DeepEyesPatchError, SettingsError
from deepeyes_patch.observe import counters, record, release
from deepeyes_patch.settings import REPAIRS, SWITCH

logger = logging.getLogger("deepeyes_patch")
_HTTP_SERVER = "sglang.srt.entrypoints.http_server"

NATIVE = "native"  # this SGLang is right by itself

_wanted: frozenset[str] = frozenset()
_words: dict[str, str] = {}
_failures: dict[str, Exception] = {}
_announced = ""


def wanted() -> frozenset[str]:
    """The repairs that are installed in this process."""
    return _wanted


def want(repairs: frozenset[str]) -> None:
    """Add to the repairs that are installed."""
    global _wanted
    _wanted |= repairs


def succeeded(repair: str, words: str | None) -> None:
    """Keep what was patched first, in a few words; ``None`` adds nothing to what is known."""
    if words is not None and not is_patched(repair):
        _words[repair] = words
    publish()


def failed(repair: str, error: Exception) -> None:
    """Keep the first failure of a repair."""
    _failures.setdefault(repair, error)
    publish()


def forget() -> None:
    """Forget all outcomes: nothing is installed any more."""
    global _wanted, _announced
    _wanted = frozenset()
    _words.clear()
    _failures.clear()
    _announced = ""
    record.withdraw()


def is_patched(repair: str) -> bool:
    """Whether a repair has been applied without a failure, and changes something."""
    return repair in _words and repair not in _failures and _words[repair] != NATIVE


def is_known(repair: str) -> bool:
    """Whether a hook of this repair has run without a failure."""
    return repair in _words


def raise_failure(repair: str) -> None:
    """If a repair could not be applied, raise the failure.

    Raises
    ------
    DeepEyesPatchError
        The failure, or an error that says what stopped the hook.
    """
    failure = _failures.get(repair)
    if isinstance(failure, DeepEyesPatchError):
        raise failure.with_traceback(None)  # else the traceback would grow each time
    if failure is not None:
        raise DeepEyesPatchError(
            f"deepeyes-patch cannot apply its {repair!r} repair, {type(failure).__name__}: {failure}. Fix "
            f"that, or set {SWITCH}=off to serve unrepaired"
        ) from failure


def status() -> dict[str, str]:
    """The state of each repair in this process: ``{repair: a few words for people}``."""
    installed = _wanted
    if bootstrap.is_waiting():
        installed |= settings.read(os.environ).repairs
    return {repair: _state(repair, installed) for repair in REPAIRS}


def publish() -> None:
    """Write `status` into the record of this process."""
    # A script may have set the switch to an unknown value meanwhile. This runs in hooks, which never raise.
    with contextlib.suppress(SettingsError):
        record.publish(__version__, status(), counters.NAMES)


def announce() -> None:
    """Write one line into SGLang's log: what is patched in this process. Again only if that has changed.

    Call this after SGLang has set up its logging, which it does after its modules are imported.
    """
    global _announced
    states = "; ".join(f"{repair}: {state}" for repair, state in status().items())
    if states == _announced:
        return
    _announced = states
    _logger_that_is_shown().info(
        "deepeyes-patch %s, SGLang %s, pid %d: %s",
        __version__,
        release.version(),
        os.getpid(),
        states,
    )


def _state(repair: str, installed: frozenset[str]) -> str:
    if repair not in installed:
        return "off"
    if repair in _failures:
        failure = _failures[repair]
        first = next(filter(None, str(failure).splitlines()), type(failure).__name__)
        return f"failed ({first})"
    return _words.get(repair, "waiting")


def _logger_that_is_shown() -> logging.Logger:
    """Our logger; in an HTTP worker (``--tokenizer-worker-num``) the logger of SGLang's HTTP server.

    In those workers SGLang sets up no other logger, and a worker without our line looks unrepaired.
    """
    return logger if logger.isEnabledFor(logging.INFO) else logging.getLogger(_HTTP_SERVER)
