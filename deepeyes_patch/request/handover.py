"""Each sample of a request (``n`` in its sampling parameters) gets its images.

From 0.5.9 on, the tokenizer manager puts the pixels of a request into shared memory, and hands the scheduler
a name in place of them. The scheduler removes that memory when it has read it. For ``n`` samples, SGLang
sends the same request ``n + 1`` times. Up to 0.5.12.post1 all of them share their images, so the second one
names memory that is gone, and the scheduler ends. From 0.5.13 on, each of them has images of its own.
"""

from __future__ import annotations

import copy
from typing import Any

from deepeyes_patch.seams.wrapping import Call


def wrap_features(call: Call) -> Any:
    """``wrap_shm_features``, as the tokenizer manager calls it for a request that it is about to send."""
    request = call.arguments["obj"]
    inputs = getattr(request, "mm_inputs", None)
    if inputs:
        request.mm_inputs = _with_own_items(inputs)
    return call.proceed()


def _with_own_items(inputs: Any) -> Any:
    """A copy of the processor's result that SGLang can change; it shares the tensors."""
    own = copy.copy(inputs)
    if isinstance(own, dict):  # to 0.5.9
        own["mm_items"] = [copy.copy(item) for item in own["mm_items"]]
    else:
        own.mm_items = [copy.copy(item) for item in own.mm_items]
    return own
