"""Encoder disaggregation: a request receives the embeddings that an encoder has made of its images.

With ``zmq_to_scheduler`` and ``mooncake``, the scheduler's loop receives them. Up to 0.5.16, the loop passes
the request's text to ``get_mm_data``. A request of ids has no text: the tokenizer raises, and the server
ends. Our refusal would end the server too. From 0.5.17 on, SGLang would answer it with HTTP 500. But a
waiting request can report, with a message and a status, that its encoder failed. We hand a refusal over in
this form.

With ``zmq_to_tokenizer``, the tokenizer manager receives them. From 0.5.20 on, it treats any error as a
failure of the encoder. 0.5.23 answers that with HTTP 503.
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
    try:
        return _receive(call, waiting)
    except Exception as error:
        failure = call.failure(error)
        # Up to 0.5.7, a waiting request can only report that it is ready, not that it failed.
        if not isinstance(failure, (RefusedRequest, InternalError)) or not hasattr(waiting, "status"):
            raise
        _fail(waiting, failure)


def _receive(call: Call, waiting: Any) -> Any:
    sent = waiting.recv_req
    state = Reception(None if sent.input_text else sent.input_ids)
    with entered(state):
        try:
            return call.proceed()
        finally:
            if state.failure is not None:
                waiting.error_code = _status(state.failure)


def _status(error: RefusedRequest | InternalError) -> int:
    return _BAD_REQUEST if isinstance(error, RefusedRequest) else _SERVER_ERROR


def _fail(waiting: Any, error: RefusedRequest | InternalError) -> None:
    """Give up a request, as SGLang does if the encoder has sent an error."""
    waiting.error_msg = str(error)
    waiting.error_code = _status(error)
    waiting.status = type(waiting.status).FAIL
    if hasattr(waiting, "_cleanup_gpu_buffer"):  # mooncake's
        waiting._cleanup_gpu_buffer()
    waiting.recv_socket.close()


async def receive_in_tokenizer(call: Call) -> Any:
    """``_recv_mm_data``, in the tokenizer manager."""
    state = Reception(None)
    with entered(state):
        result = await call.proceed()
    if state.failure is not None:  # SGLang caught it
        raise state.failure
    return result
