"""A release's real tokenizer manager, in this process: the real class, constructed as a server does it.

Nothing listens at the other end of its sockets. What it makes of a request is what the scheduler would get.
"""

from __future__ import annotations

import asyncio
import importlib
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


def tokenize(made: Any, request: Any, **more: Any) -> Any:
    """What the scheduler would get for a request (``GenerateReqInput``, ``EmbeddingReqInput``).

    ``more`` are further arguments of SGLang's method.
    """

    async def work() -> Any:
        request.normalize_batch_and_arguments()
        if hasattr(made, "_init_req_state"):  # as `generate_request` does
            made._init_req_state(request)
        return await asyncio.wait_for(made._tokenize_one_request(request, **more), processors.REQUEST_SECONDS)

    return processors.run(work())
