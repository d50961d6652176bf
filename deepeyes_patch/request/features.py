"""Vision features that SGLang keeps are dropped when the weights change.

The scheduler keeps what the vision tower has made of an image, by the hash of the image. An update of the
weights does not touch that cache, and neither does a flush. The same image is then answered with features of
the old tower, and the log-probs are those of no model.
"""

from __future__ import annotations

import sys
from typing import Any

from deepeyes_patch.seams.wrapping import Call

# The modules that have held the cache.
_HOMES = ("sglang.srt.managers.mm_utils", "sglang.srt.managers.mm_schedule")


def update_weights(call: Call) -> Any:
    """The scheduler updates the weights: from disk, tensors, a process group, or another process's memory."""
    try:
        return call.proceed()
    finally:  # an update that fails may have changed some of them
        for name in _HOMES:
            cache = getattr(sys.modules.get(name), "embedding_cache", None)
            if cache is not None:
                cache.clear()
