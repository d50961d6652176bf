"""How many requests this process has restored, passed through and refused, and why.

The counts live in the process's `record`, and in SGLang's Prometheus metrics where those are on.
"""

from __future__ import annotations

import os
import threading
import types
from typing import Any

from deepeyes_patch.observe import record

RESTORED, PASSED, REFUSED = "restored", "passed", "refused"

# Which of our functions refuses, and for what reason. A closed list: each is a label in Prometheus.
_REASONS = {
    ("ids.request", "_token_ids"): "token_ids",
    ("ids.spans", "find_spans"): "placeholders",
    ("ids.spans", "_spans"): "placeholders",
    ("request.admit", "_refuse_placeholders"): "placeholders",
    ("request.unserved", "check_placeholders"): "placeholders",
    ("ids.request", "__init__"): "count",
    ("ids.request", "_check_count"): "count",
    ("ids.request", "resolve"): "length",
    ("ids.request", "_with_videos"): "video",
    ("ids.video_blocks", "read_blocks"): "video",
    ("ids.video_blocks", "find_places"): "video",
    ("request.frames", "sample"): "video",
    ("request.frames", "note"): "video",
    ("request.begin", "_look_at_videos"): "video",
    ("request.begin", "_refuse_wrong_times"): "video",
    ("request.begin", "_process"): "media",
    ("request.begin", "_checked_images"): "media",
    ("request.begin", "_check_rows"): "media",
    ("request.begin", "_preprocessed_grids"): "media",
    ("request.begin", "_grid_rows"): "media",
    ("request.begin", "_checked_videos"): "unsupported",
    ("request.begin", "_open"): "unsupported",
    ("request.begin", "_refuse_media"): "unsupported",
    ("request.begin", "_get_rope_index"): "unsupported",
    ("request.admit", "_tokenize"): "unsupported",
    ("request.admit", "_refuse_cut"): "cut",
    ("request.unserved", "check_result"): "inexact",
    ("request.begin", "_demand"): "inexact",
}
REASONS = tuple(dict.fromkeys(_REASONS.values()))
NAMES = (RESTORED, PASSED, *(f"{REFUSED}:{reason}" for reason in REASONS))

_SLOTS = {name: slot for slot, name in enumerate(NAMES)}
_COUNTED = "_deepeyes_patch_counted"

_lock = threading.Lock()
_exported: dict[str, Any] = {}


def count(name: str) -> None:
    """Add one to a count out of `NAMES`."""
    with _lock:
        record.counts[_SLOTS[name]] += 1
    if _exported:
        _exported[name].inc()


def count_refusal(error: ValueError) -> None:
    """Count a refusal of ours once, however many of our wrappers it passes; no error of anybody else's."""
    reason = reason_of(error)
    if reason is not None and not hasattr(error, _COUNTED):
        setattr(error, _COUNTED, True)
        count(f"{REFUSED}:{reason}")


def reason_of(error: BaseException) -> str | None:
    """Why we refused, by the function that raised; ``None`` where that is none of ours."""
    trace: types.TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    package, _, module = str(trace.tb_frame.f_globals.get("__name__")).partition(".")
    if package != "deepeyes_patch":
        return None
    return _REASONS.get((module, trace.tb_frame.f_code.co_name))


def export() -> None:
    """Add the counts to the Prometheus metrics of this process, which SGLang collects over all of its own.

    To be called once SGLang has set ``PROMETHEUS_MULTIPROC_DIR``, and only where its metrics are on:
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


def _renew() -> None:
    """In a forked child another thread's hold on the lock would never end."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
