"""A request with ids or media that is refused, by us or by SGLang, leaves nothing in the tokenizer manager.

From 0.5.10 on, SGLang keeps a state for each request before it tokenizes it. Up to 0.5.13, a request that
raises before it is sent to the scheduler leaves this state, with its images, for ever: memory grows, and the
server then waits for these requests when it is told to end. Later releases remove such states themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from deepeyes_patch.seams.families import model_of
from deepeyes_patch.seams.wrapping import Call

_BESIDE_TEXT = ("input_ids", "image_data", "video_data", "audio_data")


def generate(call: Call) -> Any:
    """``TokenizerManager.generate_request``, an asynchronous generator."""
    request, manager = call.arguments["obj"], call.instance
    # A text prompt without media can fail, too. It stays stock's, without another generator around it.
    is_text = all(getattr(request, name, None) is None for name in _BESIDE_TEXT)
    if is_text or model_of(getattr(manager, "mm_processor", None)) is None:
        return call.proceed()
    return _leaving_nothing(manager, request, call.proceed())


async def _leaving_nothing(manager: Any, request: Any, responses: Any) -> AsyncIterator[Any]:
    try:
        async with contextlib.aclosing(responses):
            async for response in responses:
                yield response
    except Exception:
        _drop_states(manager, request)
        raise


def _drop_states(manager: Any, request: Any) -> None:
    """Remove the states of a request (a batch has several) that were never sent to the scheduler."""
    rids = request.rid if isinstance(request.rid, list) else [request.rid]
    for rid in rids:
        if _is_unsent(manager.rid_to_state.get(rid)):
            del manager.rid_to_state[rid]


def _is_unsent(state: Any) -> bool:
    # Up to 0.5.9 there is a state only once the request was sent, and no such time.
    return getattr(getattr(state, "time_stats", None), "api_server_dispatch_time", None) == 0
