"""Encoder disaggregation: where a request receives the embeddings that an encoder has made of its images.

With ``zmq_to_scheduler`` and ``mooncake``, the scheduler's loop receives. To 0.5.16 it gives ``get_mm_data``
the request's text, and a request of ids has none: the tokenizer's error ends the server. A refusal of ours
would end it too, and from 0.5.17 on it would be answered as a fault of the server's, HTTP 500. But a request
that waits can say that its encoder has failed, with a message and a status. A refusal is handed over as that.

With ``zmq_to_tokenizer``, the tokenizer manager receives. From 0.5.20 on it takes any error for a failure of
the encoder's, which 0.5.23 answers with HTTP 503.
"""

from __future__ import annotations

from typing import Any

from deepeyes_patch.errors import InternalError, RefusedRequest
from deepeyes_patch.request.scope import Reception, entered
from deepeyes_patch.seams.wrapping import Call

_BAD_REQUEST, _SERVER_ERROR = 400, 500


def receive(call: Call) -> Any:
    """``_try_recv_mm_data`` and ``consume_parts``, in the scheduler."""
    waiting = call.instance
    sent = waiting.recv_req
    state = Reception(None if sent.input_text else sent.input_ids)
    with entered(state):
        try:
            return call.proceed()
        except (RefusedRequest, InternalError) as error:
            # To 0.5.7 nothing can be said of a request but that it is ready.
            if not hasattr(waiting, "status"):
                raise
            _fail(waiting, error)
        finally:
            if state.refusal is not None:
                waiting.error_code = _BAD_REQUEST


def _fail(waiting: Any, error: RefusedRequest | InternalError) -> None:
    """Give up a request, as SGLang does where the encoder has sent an error."""
    waiting.error_msg = str(error)
    waiting.error_code = _BAD_REQUEST if isinstance(error, RefusedRequest) else _SERVER_ERROR
    waiting.status = type(waiting.status).FAIL
    if hasattr(waiting, "_cleanup_gpu_buffer"):  # mooncake's
        waiting._cleanup_gpu_buffer()
    waiting.recv_socket.close()


async def receive_in_tokenizer(call: Call) -> Any:
    """``_recv_mm_data``, in the tokenizer manager."""
    state = Reception(None)
    with entered(state):
        result = await call.proceed()
    if state.refusal is not None:  # SGLang caught it
        raise state.refusal
    return result
