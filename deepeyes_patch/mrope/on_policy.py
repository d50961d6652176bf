"""M-RoPE positions under ``--rl-on-policy-target``, in ``sglang.srt.model_executor.forward_batch_info``.

SGLang 0.5.8 and later give every token of a batch its text position when a training system is named, images
included. The positions that the processor made are in the batch, and are not read. The functions that
compute positions ask for SGLang's arguments by a getter. While they run, the getter's answer names no
training system; everything else in it stays as it is, and so does every other use of the argument.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from deepeyes_patch.observe import outcomes
from deepeyes_patch.seams.facts import TARGET
from deepeyes_patch.seams.wrapping import Call
from deepeyes_patch.settings import SWITCH

logger = logging.getLogger("deepeyes_patch")

# Set while SGLang computes the M-RoPE positions of a batch.
_computing: ContextVar[bool] = ContextVar("deepeyes_patch_computing_positions", default=False)


def compute_positions(call: Call) -> Any:
    """``ForwardBatch._compute_mrope_positions``: the positions of a batch, prefill or decode."""
    token = _computing.set(True)
    try:
        return call.proceed()
    finally:
        _computing.reset(token)


def refuse_positions(call: Call) -> Any:
    """``_compute_mrope_positions`` of an SGLang that does not fit: images might get text positions."""
    outcomes.raise_failure("mrope")
    return call.proceed()


def hide_target(original: Callable[..., Any]) -> Callable[..., Any]:
    """The getter of SGLang's arguments, as imported by ``forward_batch_info``."""

    @functools.wraps(original)
    def getter(*args: Any, **kwargs: Any) -> Any:
        arguments = original(*args, **kwargs)
        return _WithoutTarget(arguments) if _computing.get() else arguments

    return getter


class _WithoutTarget:
    """SGLang's arguments, but for the training system.

    Some releases keep the name of the training system one level below, among what makes inference
    deterministic.
    """

    __slots__ = ("_arguments",)

    def __init__(self, arguments: Any) -> None:
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._arguments, name)
        if name == TARGET:
            if value is not None:
                _say_once(value)
            return None
        return _WithoutTarget(value) if name == "deterministic" else value


@functools.cache
def _say_once(target: str) -> None:
    outcomes.succeeded("mrope", "patched (ForwardBatch)")
    outcomes.announce()
    logger.warning(
        "deepeyes-patch: SGLang would give images text positions, because of --rl-on-policy-target %s; they "
        "keep their M-RoPE positions, as in transformers. A trainer that passes text positions to the model "
        "needs %s without mrope",
        target,
        SWITCH,
    )
