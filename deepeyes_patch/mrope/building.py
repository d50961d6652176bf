"""Which model is being built, and the refusal of its ropes if the repair failed. Does not import torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from deepeyes_patch.observe import outcomes
from deepeyes_patch.seams.wrapping import Call

# Set while a model is built whose rotary lanes transformers always interleaves, whatever the config says.
_building: ContextVar[bool] = ContextVar("deepeyes_patch_building", default=False)


def build_model(call: Call) -> None:
    """``...ForConditionalGeneration.__init__`` of Qwen3-VL, its MoE and Qwen3.5.

    If the repair failed, such a model is not built. `refuse_rope` refuses its ropes too, but it needs an
    SGLang that has a ``get_rope``.
    """
    outcomes.raise_failure("mrope")
    with building():
        call.proceed()


@contextlib.contextmanager
def building() -> Iterator[None]:
    """A context in which a model is built that ``transformers`` always interleaves."""
    token = _building.set(True)
    try:
        yield
    finally:
        _building.reset(token)


def is_building() -> bool:
    """Whether such a model is being built."""
    return _building.get()


def refuse_rope(call: Call) -> Any:
    """``get_rope`` of an SGLang that does not fit: refuse a config that must be interleaved."""
    # Find the config by its keys, not by the parameter's name: the function may have an unknown shape.
    scalings = [value for value in call.values if isinstance(value, dict) and "mrope_section" in value]
    if any(scaling.get("mrope_interleaved") or is_building() for scaling in scalings):
        outcomes.raise_failure("mrope")
    return call.proceed()
