"""Encoder disaggregation: where a request receives the embeddings that an encoder has made of its images.

With ``zmq_to_scheduler`` and ``mooncake`` that is the scheduler's loop. To 0.5.16 it gives ``get_mm_data``
the request's text, and a request of ids has none: the tokenizer's error ends the server. A refusal of ours
would end it too, and from 0.5.17 on be answered as a fault of the server's, HTTP 500. A request that waits
can say that its encoder has failed, with a message and a status, and a refusal is handed over as that.

With ``zmq_to_tokenizer`` the tokenizer manager receives. From 0.5.20 on it takes any error for a failure of
the encoder's, which 0.5.23 answers with HTTP 503.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from deepeyes_patch.observe import counters
from deepeyes_patch.seams import examine as compat
from deepeyes_patch.seams import wrapping
from deepeyes_patch.seams.examine import Seam
from deepeyes_patch.seams.table import RECEIVER, WAITING

_BAD_REQUEST = 400


class _Reception:
    """A request that receives. ``ids`` are for ``get_mm_data``, where it is given no prompt."""

    def __init__(self, ids: Sequence[int] | None) -> None:
        self.ids = ids
        self.refusal: ValueError | None = None


_reception: ContextVar[_Reception | None] = ContextVar("deepeyes_patch_reception", default=None)


def apply(module: ModuleType, repair: str, switch: str) -> None:
    """Wrap the methods in which a request receives, on every class of ``module`` that has its own.

    Raises
    ------
    IncompatibleSGLangError
        No class has such a method, or it has another shape.
    """
    for seams, wrapper in ((WAITING, _receive), (RECEIVER, _receive_in_tokenizer)):
        for cls in _owners(module, seams, repair, switch):
            for finding in compat.require(cls, seams, repair, switch):
                if finding.present:
                    wrapping.wrap(cls, finding.seam.name, wrapper)


def _owners(module: ModuleType, seams: Sequence[Seam], repair: str, switch: str) -> list[type]:
    name = seams[0].name
    classes = compat.classes_defined_in(module, lambda cls: name in vars(cls))
    if not classes:
        raise compat.incompatible(repair, switch, [f"no class in {module.__name__} defines {name}"])
    return classes


def waiting_ids() -> list[int] | None:
    """The ids of the request that receives right now, where it has no text."""
    reception = _reception.get()
    return None if reception is None or reception.ids is None else list(reception.ids)


def note_refusal(error: ValueError) -> None:
    """Remember a refusal of ours on its way to whoever catches it, if a request receives right now."""
    reception = _reception.get()
    if reception is not None and counters.reason_of(error) is not None:
        reception.refusal = error


def _receive(wrapped: Callable[..., Any], waiting: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    request = waiting.recv_req
    reception = _Reception(None if request.input_text else request.input_ids)
    token = _reception.set(reception)
    try:
        return wrapped(*args, **kwargs)
    except ValueError as error:
        # To 0.5.7 nothing can be said of a request but that it is ready.
        if error is not reception.refusal or not hasattr(waiting, "status"):
            raise
        _fail(waiting, str(error))
    finally:
        _reception.reset(token)
        if reception.refusal is not None:
            waiting.error_code = _BAD_REQUEST


async def _receive_in_tokenizer(
    wrapped: Callable[..., Awaitable[Any]], receiver: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    reception = _Reception(None)
    token = _reception.set(reception)
    try:
        result = await wrapped(*args, **kwargs)
    finally:
        _reception.reset(token)
    if reception.refusal is not None:
        raise reception.refusal
    return result


def _fail(waiting: Any, message: str) -> None:
    """As upstream does where the encoder has sent an error."""
    waiting.error_msg = message
    waiting.status = type(waiting.status).FAIL
    if hasattr(waiting, "_cleanup_gpu_buffer"):  # mooncake's
        waiting._cleanup_gpu_buffer()
    waiting.recv_socket.close()
