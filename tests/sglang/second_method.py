"""A made-up second outermost method of the processor, as upstream is building one, with its faults.

The tokenizer manager calls it in place of ``process_mm_data_async``. The request says in
``mm_token_expansion_start_len`` how many leading ids are expanded already; they are taken as they are. Behind
them, each placeholder is expanded for one of the last images. Nothing is compared with the images, and no
wrapper of ours is passed. `add` patches the classes of a release; a copy of SGLang may call it, too.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FIELD = "mm_token_expansion_start_len"
METHOD = "process_token_space_mm_data_async"


def stock(function: Any) -> Any:
    """A function without the wrappers around it."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


async def process(processor: Any, folder: Path, ids: Sequence[int], images: Any, request: Any) -> Any:
    """What the made-up method returns: the class's own items, with ids, offsets and positions made here."""
    from tests.lab import reference
    from tests.sglang import rollouts

    token, image = processor.mm_tokens.image_token_id, processor.mm_tokens.image_token
    images = list(images)
    original = stock(type(processor).process_mm_data_async)
    result = await original(
        processor,
        image_data=images,
        audio_data=None,
        input_text=f"<|vision_start|>{image}<|vision_end|>" * len(images),
        request_obj=request,
        max_req_input_len=100_000,
    )
    get, put = _access(result)
    lengths = [last - first + 1 for item in get("mm_items") for first, last in item.offsets]
    grids = [item.image_grid_thw.reshape(-1, 3) for item in get("mm_items")]
    expanded = getattr(request, FIELD, None) or 0
    tail = list(ids[expanded:])
    behind = iter(lengths[len(lengths) - tail.count(token) :])
    made = list(ids[:expanded])
    for value in tail:
        made += [token] * next(behind, 1) if value == token else [value]
    runs = iter(rollouts.runs_of(token, made))
    for item in get("mm_items"):
        item.offsets = [next(runs, (0, 0)) for _ in item.offsets]
    put("input_ids", made)
    if get("padded_input_ids") is not None:
        put("padded_input_ids", type(result).build_padded_input_ids(made, get("mm_items")))
    torch = importlib.import_module("torch")
    try:
        positions, delta = reference.positions(folder, made, torch.cat(grids))
    except Exception:  # transformers has none for ids that do not fit
        positions, delta = torch.arange(len(made)).expand(3, -1).clone(), 0
    put("mrope_positions", positions)
    put("mrope_position_delta", torch.tensor([[delta]]))
    return result


def _access(result: Any) -> tuple[Any, Any]:
    if isinstance(result, dict):
        return result.get, result.__setitem__
    return (lambda name: getattr(result, name, None)), (lambda name, value: setattr(result, name, value))


def dispatch(manager: Any, folder: Path) -> Any:
    """What a tokenizer manager calls in place of the processor's method."""

    async def outermost(*, image_data: Any, input_text: Any, request_obj: Any, **more: Any) -> Any:
        processor = manager.mm_processor
        if not isinstance(input_text, list):
            return await type(processor).process_mm_data_async(
                processor, image_data=image_data, input_text=input_text, request_obj=request_obj, **more
            )
        return await getattr(processor, METHOD)(folder, input_text, image_data, request_obj)

    return outermost


def add(manager: Any, folder: Path) -> None:
    """Give the processor of a tokenizer manager the second method, and let the manager call it."""
    setattr(type(manager.mm_processor), METHOD, process)
    called = dispatch(manager, folder)
    manager.mm_processor.process_mm_data_async = called
    if (kept := getattr(manager, "mm_data_processor", None)) is not None:  # to 0.5.9 it keeps the method
        called.before = kept._proc_async
        kept._proc_async = called


def remove(manager: Any) -> None:
    """Undo `add`."""
    delattr(type(manager.mm_processor), METHOD)
    called = manager.mm_processor.__dict__.pop("process_mm_data_async")
    if (kept := getattr(manager, "mm_data_processor", None)) is not None:
        kept._proc_async = called.before


def serve(manager_class: type) -> None:
    """Give every tokenizer manager of a copy of SGLang the second method, when it is constructed."""
    construct = manager_class.__init__

    @functools.wraps(construct)
    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        add(self, Path(self.server_args.model_path))

    manager_class.__init__ = constructed  # type: ignore[misc]
