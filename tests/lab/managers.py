"""A release's real tokenizer manager, in this process: the real class, constructed as a server does it.

Nothing listens at the other end of its sockets. What it makes of a request is what the scheduler would get.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from deepeyes_patch.observe import outcomes
from deepeyes_patch.verification import harness
from tests.lab import flags, processors

MODULE = "sglang.srt.managers.tokenizer_manager"


def manager(folder: Path, **server_args: Any) -> Any:
    """The tokenizer manager of a model; kept for the process, one for stock and one for patched tests.

    Some releases keep the processor's method when the manager is constructed. So the repair has to be on by
    then, as it is in a server.

    ``server_args`` are fields of ``ServerArgs``. In releases with a process-wide configuration, that becomes
    this manager's.
    """
    repaired = "processor" in outcomes.wanted()
    made, args = _made(folder, tuple(sorted(server_args.items())), repaired)
    harness._publish(args)
    return made


@cache
def _made(folder: Path, server_args: tuple[tuple[str, Any], ...], repaired: bool) -> tuple[Any, Any]:
    processors.processor_class()  # on 0.5.3 the manager alone runs into a circular import
    module = importlib.import_module(MODULE)
    ports = importlib.import_module("sglang.srt.server_args").PortArgs
    args = module.ServerArgs(model_path=str(folder), **flags.server_args(**dict(server_args)))
    harness._publish(args)

    async def make() -> Any:
        return module.TokenizerManager(args, ports.init_new(args))

    return processors.run(make()), args


def process(
    processor: Any,
    folder: Path,
    prompt: str | Sequence[int],
    images: Sequence[Any],
    seconds: float = processors.REQUEST_SECONDS,
) -> Any:
    """What another processor makes of a request, asked by the tokenizer manager of a model."""
    made = manager(folder)
    fields = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
    request = importlib.import_module("sglang.srt.managers.io_struct").GenerateReqInput(
        image_data=list(images), sampling_params={"max_new_tokens": 2}, **fields
    )
    kept = getattr(made, "mm_data_processor", None)  # to 0.5.9 it keeps the method
    own = made.mm_processor, getattr(kept, "_proc_async", None)
    made.mm_processor = processor
    if kept is not None:
        kept._proc_async = processor.process_mm_data_async
    try:
        return harness.normalise(tokenize(made, request, seconds=seconds).mm_inputs)
    finally:
        made.mm_processor = own[0]
        if kept is not None:
            kept._proc_async = own[1]


def keeps_what_raises(manager: Any) -> bool:
    """Whether stock keeps a request that raises before it is sent, for ever. Takes the manager or its class.

    Such a release makes a state for each request before it tokenizes the request, and removes none itself.
    """
    early = hasattr(manager, "_init_req_state") or hasattr(manager, "_req_stats_init")
    cleans = ("_discard_pending_req_states", "_release_req_states_on_failure")
    return early and not any(hasattr(manager, name) for name in cleans)


def tokenize(made: Any, request: Any, *, seconds: float = processors.REQUEST_SECONDS, **more: Any) -> Any:
    """What the scheduler would get for a request (``GenerateReqInput``, ``EmbeddingReqInput``).

    ``more`` are further arguments of SGLang's method.
    """

    async def work() -> Any:
        request.normalize_batch_and_arguments()
        if hasattr(made, "_init_req_state"):  # as `generate_request` does
            made._init_req_state(request)
        return await asyncio.wait_for(made._tokenize_one_request(request, **more), seconds)

    return processors.run(work())
