"""How many requests this process has restored, passed through and refused, and why.

The counts are in the process's `record`, and in SGLang's Prometheus metrics if those are on.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

from deepeyes_patch.errors import REASONS, RefusedRequest
from deepeyes_patch.observe import record

RESTORED, PASSED, REFUSED = "restored", "passed", "refused"
# An image or video whose server did not answer as it should. The request fails with SGLang's own status.
NOT_FETCHED = "not_fetched"
# Counted once more, beside the outcome: what reached the last look by a path that no other wrapper covers.
UNKNOWN_PATH = "unknown_path"
NAMES = (RESTORED, PASSED, NOT_FETCHED, UNKNOWN_PATH, *(f"{REFUSED}:{reason}" for reason in REASONS))

_SLOTS = {name: slot for slot, name in enumerate(NAMES)}

_lock = threading.Lock()
_exported: dict[str, Any] = {}


def count(name: str) -> None:
    """Add one to a count out of `NAMES`. Never raises: the request has been served by then."""
    with _lock:
        record.add(_SLOTS[name], 1)
    if _exported:
        with contextlib.suppress(Exception):  # in a forked child, prometheus_client opens new files
            _exported[name].inc()


def count_refusal(refusal: RefusedRequest) -> None:
    """Count a refusal once, however many of our wrappers it passes on its way out."""
    if not refusal.counted:
        refusal.counted = True
        count(f"{REFUSED}:{refusal.reason}")


def export() -> None:
    """Add the counts to the Prometheus metrics of this process. SGLang sums metrics over its processes.

    Call this after SGLang has set ``PROMETHEUS_MULTIPROC_DIR``, and only if its metrics are on:
    ``prometheus_client`` is imported here.
    """
    if _exported:  # a name cannot be registered twice
        return
    from prometheus_client import Counter

    total = Counter(
        "deepeyes_patch_requests",
        "Requests that deepeyes-patch restored, passed through to SGLang, or refused (by reason).",
        labelnames=("outcome", "reason"),
    )
    for name in NAMES:
        outcome, _, reason = name.partition(":")
        _exported[name] = total.labels(outcome=outcome, reason=reason)


def _renew_lock() -> None:
    """Replace the lock in a forked child: if another thread held it at the fork, nobody would release it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
