"""Which model is being built, and the refusal of its ropes if the repair failed. Does not import torch."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from deepeyes_patch.errors import DeepEyesPatchError
from deepeyes_patch.observe import outcomes
from deepeyes_patch.seams.live import LiveView
from deepeyes_patch.seams.table_mrope import BUILT, MODELS
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


def refuse_built() -> None:
    """Refuse a process that has built such a model already: the model keeps the ropes that it has.

    Raises
    ------
    DeepEyesPatchError
        An object of one of their classes is alive.
    """
    view = LiveView()
    modules = [module for name in MODELS if (module := view.module(name)) is not None]
    classes = tuple(cls for module in modules for _, cls in BUILT.find(view, module))
    if (
        not classes
    ):  # as in every process that starts with the switch on; looking at all objects takes a while
        return
    # Not `isinstance`: it would ask proxies for their class. An object without modules, whose constructor has
    # raised, has no rope.
    built = {
        type(found).__name__
        for found in gc.get_objects()
        if issubclass(type(found), classes) and vars(found).get("_modules")
    }
    if built:
        raise DeepEyesPatchError(
            f"deepeyes-patch cannot apply its 'mrope' repair: this process has built "
            f"{', '.join(sorted(built))} already, which keeps SGLang's own ropes. Call "
            f"deepeyes_patch.install() before the model is built"
        )


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
