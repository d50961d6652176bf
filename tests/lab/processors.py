"""A release's own Qwen-VL processor, run in this process: milliseconds a case.

The lab's models and settings for `deepeyes_patch.verification.harness`, and a loop for callers without one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from deepeyes_patch.seams.table import QWEN_VL as MODULE
from deepeyes_patch.verification import harness
from deepeyes_patch.verification.harness import (
    REQUEST_SECONDS,
    Processed,
    answer_async,
    hf_config,
    normalise,
    process_async,
)
from tests.lab import flags, models

__all__ = [
    "MODULE",
    "REQUEST_SECONDS",
    "Processed",
    "answer_async",
    "build",
    "hf_config",
    "normalise",
    "process",
    "process_async",
    "processor_class",
    "run",
]

_loop: asyncio.AbstractEventLoop | None = None


def processor_class() -> type:
    """The class in the Qwen module that serves models; its name differs between releases."""
    os.environ.update(flags.ENVIRONMENT)
    return harness.processor_class()


def build(
    kind_or_folder: models.Kind | Path, cls: type | None = None, config: Any = None, **server_args: Any
) -> Any:
    """A processor object as the tokenizer manager makes it, for a tiny model or any folder.

    ``cls`` and ``config``: others than the Qwen module's class and the folder's configuration. In releases
    with a process-wide configuration the last processor built decides it.
    """
    folder = kind_or_folder
    if not isinstance(folder, Path):
        folder = models.ensure(folder)
    return harness.build(folder, flags.server_args(**server_args), cls or processor_class(), config)


def process(
    processor: Any,
    prompt: str | Sequence[int],
    images: Sequence[Any] | None = None,
    videos: Sequence[Any] | None = None,
    **request_fields: Any,
) -> Processed:
    """`process_async` for callers without an event loop."""
    done: Processed = run(process_async(processor, prompt, images, videos, **request_fields))
    return done


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run on the lab's loop: always the same one, because processors keep locks bound to it."""
    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
    return _loop.run_until_complete(work)
