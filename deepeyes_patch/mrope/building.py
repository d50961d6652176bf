"""Which model is being built, and the refusal of its ropes where the repair failed. Free of torch."""

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

    Such a model is not built where the repair failed. ``get_rope`` refuses its ropes too, but an SGLang
    without ``get_rope`` has nothing there to wrap.
    """
    outcomes.raise_failure("mrope")
    with building():
        call.proceed()


@contextlib.contextmanager
def building() -> Iterator[None]:
    """While a model is built that ``transformers`` always interleaves."""
    token = _building.set(True)
    try:
        yield
    finally:
        _building.reset(token)


def is_building() -> bool:
    """Whether such a model is being built."""
    return _building.get()


def refuse_rope(call: Call) -> Any:
    """``get_rope`` of an SGLang that does not fit: raise why for a config that has to be interleaved."""
    # By its keys, not by its name: the function may have another shape than we know.
    scalings = [value for value in call.values if isinstance(value, dict) and "mrope_section" in value]
    if any(scaling.get("mrope_interleaved") or is_building() for scaling in scalings):
        outcomes.raise_failure("mrope")
    return call.proceed()
