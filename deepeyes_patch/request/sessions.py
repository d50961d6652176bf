"""Each turn of a session (``session_params``) has the positions of its whole prompt.

The scheduler joins the prompt of a turn with the ids and answers of the turns before. It does not join their
M-RoPE positions: those of a turn with an image start at 0 again, and the answers and the turns of text get
none. SGLang then answers at wrong positions, or ends. From 0.5.20 on, it joins them.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.observe import counters, release
from deepeyes_patch.request.verify import are_padded
from deepeyes_patch.seams.families import served_type
from deepeyes_patch.seams.wrapping import Call


class _Turn(NamedTuple):
    """What a request of a session has from the turns before: ``prefix`` ids, and ``known`` positions [3, T]
    of the first of them."""

    prefix: int
    known: Any


# The attribute of a request of the scheduler under which it has its `_Turn`.
_TURN = "_deepeyes_patch_turn"
# What SGLang keeps of a delta, from its first use on.
_OF_THE_DELTA = "mrope_position_delta_repeated_cache"
_serving: ContextVar[bool] = ContextVar("deepeyes_patch_session", default=False)
# A field of a request that `Session.create_req` reads up to 0.5.4.post1, and that no request has any more.
_LOST_FIELD = "lora_path"


def refuse_broken(request: Any) -> None:
    """Refuse a session where SGLang would end: up to 0.5.4.post1, sessions read a field that is not there.

    Raises
    ------
    RefusedRequest
        The request is of a session.
    """
    if getattr(request, "session_params", None) and _are_broken():
        raise RefusedRequest(
            "unsupported",
            f"it has session_params, and in SGLang {release.version()} its sessions do not work: the "
            f"scheduler would end. Send the whole prompt, without session_params",
        )


def _are_broken() -> bool:
    structs = sys.modules.get("sglang.srt.managers.io_struct")
    params, tokenized = (
        getattr(getattr(structs, name, None), "__annotations__", None)
        for name in ("SessionParams", "TokenizedGenerateReqInput")
    )
    if params is not None and "rid" not in params:  # the turn before: 0.5.3 and 0.5.3.post1
        return True
    session = getattr(sys.modules.get("sglang.srt.managers.session_controller"), "Session", None)
    if session is None or tokenized is None:
        return False
    reads = inspect.unwrap(session.create_req).__code__.co_names
    return _LOST_FIELD in reads and _LOST_FIELD not in tokenized


def handle_request(call: Call) -> Any:
    """``Scheduler.handle_generate_request``: a request arrives."""
    if getattr(call.arguments["recv_req"], "session_params", None) is None:
        return call.proceed()
    token = _serving.set(served_type(call.instance.model_config.hf_config) is not None)
    try:
        return call.proceed()
    finally:
        _serving.reset(token)


def create_request(call: Call) -> Any:
    """``Session.create_req``: the ids of a turn are joined with those before; its images come later."""
    request = call.proceed()
    turn = call.arguments["req"]
    if not _serving.get() or not turn.input_ids:
        return request
    inputs = request.multimodal_inputs
    known = None if inputs is None else inputs.mrope_positions
    setattr(request, _TURN, _Turn(len(request.origin_input_ids) - len(turn.input_ids), known))
    if known is not None:
        # SGLang hands on the very object of the turn before. Another turn may begin there, too.
        request.multimodal_inputs = copy.copy(inputs)
        if turn.mm_inputs is None:
            _place(request, None)
    return request


def extend_inputs(call: Call) -> Any:
    """``Req.extend_image_inputs``: the images of a turn are added to those before."""
    result = call.proceed()
    request = call.instance
    turn, new = getattr(request, _TURN, None), call.arguments["image_inputs"]
    if turn is None or new.mrope_positions is None:
        return result
    if turn.prefix or turn.known is not None:
        _place(request, new)
    return result


def _place(request: Any, new: Any) -> None:
    """Give a request the positions of all its ids; ``new``: what its turn adds, if that is not text alone."""
    try:
        _compute(request, getattr(request, _TURN), new)
    except RefusedRequest as error:
        with contextlib.suppress(Exception):  # refused, counted or not
            counters.count_refusal(error)
        request.set_finish_with_abort(str(error))  # the client gets HTTP 400 with this message


def _compute(request: Any, turn: _Turn, new: Any) -> None:
    inputs, ids = request.multimodal_inputs, request.origin_input_ids
    # To 0.5.8, SGLang counts from the turn's begin.
    if new is not None and not _stand_apart(ids, new.mm_items, turn.prefix):
        for item in new.mm_items:
            item.offsets = [(first + turn.prefix, last + turn.prefix) for first, last in item.offsets]
    if not _stand_apart(ids, inputs.mm_items):
        raise RefusedRequest(
            "unsupported",
            f"with the {turn.prefix} ids that its session has before it, its images and videos do not stand "
            f"at their placeholders, as where an offset cuts one off. Send the whole prompt, without "
            f"session_params",
        )
    # Positions of a turn count from 0. What follows an image or a text begins one past the largest before.
    own = torch.empty((3, 0), dtype=torch.int64) if new is None else new.mrope_positions.cpu().long()
    before = own[:, :0] if turn.known is None else turn.known[:, : turn.prefix].cpu().long()
    between = torch.arange(len(ids) - before.shape[1] - own.shape[1]).expand(3, -1)
    joined = before
    for part in (between, own):
        joined = torch.cat([joined, part + (int(joined.max()) + 1 if joined.numel() else 0)], dim=1)
    inputs.mrope_positions = joined
    inputs.mrope_position_delta = torch.tensor([[int(joined.max()) + 1 - len(ids)]])
    if hasattr(inputs, _OF_THE_DELTA):
        setattr(inputs, _OF_THE_DELTA, None)


def _stand_apart(ids: Any, items: Any, begin: int = 0) -> bool:
    """Whether each item has its own padding, at places from ``begin`` on that no other item has.

    The same picture has the same padding, and an image that replaces another one covers its padding.
    """
    places = sorted((first, last) for item in items for first, last in item.offsets)
    ends = [begin - 1, *(last for _, last in places)]
    apart = all(end < first for end, (first, _) in zip(ends, places, strict=False))
    return apart and are_padded(ids, items)
