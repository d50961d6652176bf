"""Runs a release's own Qwen-VL processor in this process. A request takes milliseconds.

`build` does what the tokenizer manager does at start-up, `process_async` what it does for a request. Results
of all releases (a dict before 0.5.10, a typed object after) come back as one `Processed`.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from deepeyes_patch.seams import table, table_server

if TYPE_CHECKING:
    import torch

# A server imports this module before the processors. On 0.5.3 the processors otherwise import in a circle.
_LAYERS = "sglang.srt.layers.quantization"
REQUEST_SECONDS = 60  # some releases leave a failed request waiting forever

_request_numbers = itertools.count()


@dataclass(frozen=True)
class Processed:
    """What the processor hands to the scheduler for one request of T tokens.

    ``offsets`` are inclusive (first, last) positions of all media, in order; ``grids`` int64
    [media, 3] in patches, in the order of the items; ``mrope_positions`` int64 [3, T] in the order
    t, h, w. ``padded_input_ids`` is None if the release leaves padding to the scheduler.
    The positions are None if a derived class makes none.
    ``raw`` is the release's own result.
    """

    input_ids: list[int]
    mm_items: list[Any]
    offsets: list[tuple[int, int]]
    padded_input_ids: list[int] | None
    mrope_positions: torch.Tensor | None
    mrope_position_delta: int | None
    grids: torch.Tensor | None
    raw: Any


def import_layers() -> None:
    """Import what a server imports before any processor."""
    importlib.import_module(_LAYERS)


def processor_class() -> type:
    """The class in the Qwen module that serves models; its name differs between releases."""
    import_layers()
    module = importlib.import_module(table.QWEN_VL)
    (cls,) = (
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__ and getattr(value, "models", None)
    )
    return cls


def build(folder: Path, server_args: Mapping[str, Any], cls: type | None = None, config: Any = None) -> Any:
    """A processor object as the tokenizer manager makes it for a model's folder.

    ``server_args``: fields of ``ServerArgs``. ``cls`` and ``config`` replace the Qwen module's class and the
    folder's configuration. In releases with a process-wide configuration, the last processor built decides
    it.
    """
    processor: Any = cls or processor_class()
    manager = importlib.import_module(table_server.TOKENIZER_MANAGER)
    args = manager.ServerArgs(model_path=str(folder), **server_args)
    _publish(args)
    return processor(config or hf_config(folder), args, _hf_processor(manager, args), "default")


def hf_config(folder: Path) -> Any:
    """The model's configuration as the installed release reads it."""
    transformers = importlib.import_module("sglang.srt.utils.hf_transformers_utils")
    return transformers.get_config(str(folder), trust_remote_code=False)


async def process_async(
    processor: Any,
    prompt: str | Sequence[int],
    images: Sequence[Any] | None = None,
    videos: Sequence[Any] | None = None,
    max_req_input_len: int = 32768,
    seconds: float = REQUEST_SECONDS,
    **request_fields: Any,
) -> Processed:
    """One request, as the tokenizer manager makes it. The caller's list is passed on as it is.

    ``request_fields`` are further attributes of the request object, such as ``rid``.
    """
    return normalise(
        await answer_async(processor, prompt, images, videos, max_req_input_len, seconds, **request_fields)
    )


async def answer_async(
    processor: Any,
    prompt: str | Sequence[int],
    images: Sequence[Any] | None = None,
    videos: Sequence[Any] | None = None,
    max_req_input_len: int = 32768,
    seconds: float = REQUEST_SECONDS,
    **request_fields: Any,
) -> Any:
    """What the release's own method returns."""
    request = {
        "rid": f"request-{next(_request_numbers)}",
        "image_data": images,
        "video_data": videos,
        "audio_data": None,
        "mm_content_hashes": None,
        **request_fields,
    }
    done = processor.process_mm_data_async(
        image_data=images,
        input_text=prompt,
        request_obj=SimpleNamespace(**request),
        max_req_input_len=max_req_input_len,
        audio_data=None,
    )
    return await asyncio.wait_for(done, seconds)


def normalise(result: Any) -> Processed:
    """A release's own result as a `Processed`."""
    import torch

    from deepeyes_patch.request.verify import part

    items = list(part(result, "mm_items"))
    offsets = [(int(first), int(last)) for item in items for first, last in item.offsets]
    grids = [grid for item in items if (grid := _grid(item)) is not None]
    padded = part(result, "padded_input_ids")
    delta = part(result, "mrope_position_delta")
    return Processed(
        input_ids=[int(token) for token in part(result, "input_ids")],
        mm_items=items,
        offsets=sorted(offsets),
        padded_input_ids=None if padded is None else [int(token) for token in padded],
        mrope_positions=part(result, "mrope_positions"),
        mrope_position_delta=None if delta is None else int(torch.as_tensor(delta).flatten()[0]),
        grids=torch.cat(grids) if grids else None,
        raw=result,
    )


def _grid(item: Any) -> torch.Tensor | None:
    import torch

    for name in ("image_grid_thw", "video_grid_thw"):
        grid = item.model_specific_data.get(name)
        if grid is not None:
            return torch.as_tensor(grid).reshape(-1, 3)
    return None


def _publish(args: Any) -> None:
    """Make the arguments the process-wide ones, if the release has process-wide arguments."""
    for module, name, extra in (
        ("sglang.srt.runtime_context", "publish", {"role": "tokenizer"}),
        ("sglang.srt.server_args", "set_global_server_args_for_tokenizer", {}),
        ("sglang.srt.server_args", "set_global_server_args_for_scheduler", {}),
    ):
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        function(args, **extra)
        return


def _hf_processor(manager: Any, args: Any) -> Any:
    """The HF processor as this release's tokenizer manager loads it."""
    for name in ("get_processor_wrapper", "_get_processor_wrapper"):
        if wrapper := getattr(manager, name, None):
            return wrapper(args) if inspect.signature(wrapper).parameters else wrapper()
    return manager.get_processor(
        args.tokenizer_path,
        tokenizer_mode=args.tokenizer_mode,
        trust_remote_code=args.trust_remote_code,
        revision=args.revision,
        use_fast=not args.disable_fast_image_processor,
    )
