"""How many requests this process has restored, passed through and refused, and why.

The counts live in the process's `record`, and in SGLang's Prometheus metrics where those are on.
"""

from __future__ import annotations

import os
import threading
import types
from typing import Any

from deepeyes_patch import record

RESTORED, PASSED, REFUSED = "restored", "passed", "refused"

# Which of our functions refuses, and for what reason. A closed list: each is a label in Prometheus.
_REASONS = {
    ("pretokenized", "_token_ids"): "token_ids",
    ("spans", "find_spans"): "placeholders",
    ("spans", "_spans"): "placeholders",
    ("intake", "_refuse_placeholders"): "placeholders",
    ("bystanders", "check_placeholders"): "placeholders",
    ("pretokenized", "__init__"): "count",
    ("pretokenized", "_check_count"): "count",
    ("pretokenized", "resolve"): "length",
    ("pretokenized", "_with_videos"): "video",
    ("videos", "read_blocks"): "video",
    ("videos", "find_places"): "video",
    ("sampling", "sample"): "video",
    ("sampling", "note"): "video",
    ("processor", "_look_at_videos"): "video",
    ("processor", "_refuse_wrong_times"): "video",
    ("processor", "_process"): "media",
    ("processor", "_checked_images"): "media",
    ("processor", "_check_rows"): "media",
    ("processor", "_preprocessed_grids"): "media",
    ("processor", "_grid_rows"): "media",
    ("processor", "_checked_videos"): "unsupported",
    ("processor", "_open"): "unsupported",
    ("processor", "_refuse_media"): "unsupported",
    ("processor", "_get_rope_index"): "unsupported",
    ("intake", "_tokenize"): "unsupported",
    ("intake", "_refuse_cut"): "cut",
    ("bystanders", "check_result"): "inexact",
    ("processor", "_demand"): "inexact",
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
