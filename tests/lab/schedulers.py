"""A release's own scheduler, without model, memory and sockets: what it makes of a request that arrives."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.lab import managers, processors

MODULE = "sglang.srt.managers.scheduler"


class Off:
    """Whatever a scheduler has that plays no part here: false, and so is what it returns."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __getattr__(self, name: str) -> Off:
        return Off()

    def __call__(self, *args: Any, **more: Any) -> Off:
        return Off()

    def __bool__(self) -> bool:
        return False


def scheduler(folder: Path) -> Any:
    """An object of the release's class; ``queue`` has what it would compute, ``open`` begins a session."""
    managers.manager(folder)  # publishes the configuration
    module = importlib.import_module(MODULE)
    batch = importlib.import_module("sglang.srt.managers.schedule_batch")
    pattern = importlib.import_module("sglang.srt.managers.mm_utils")
    queue: list[Any] = []

    class Scheduler(module.Scheduler):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            return Off()

        def _get_multimodal_inputs(self, inputs: Any) -> Any:
            if isinstance(inputs, batch.MultimodalInputs):
                return inputs
            if isinstance(inputs, dict):
                return batch.MultimodalInputs.from_dict(inputs)
            return batch.MultimodalInputs.from_processor_output(inputs)

        def init_req_max_new_tokens(self, req: Any) -> None:
            pass

        def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
            queue.append(req)

        def receive(self, request: Any) -> None:
            with _as_the_only_rank():
                self.handle_generate_request(request)

        def open(self, name: str) -> None:
            sessions = _sessions()
            if hasattr(sessions, "SessionController"):
                made = sessions.Session(10**6, name)
                self.session_controller.sessions[name] = made
            else:
                self.sessions[name] = sessions.Session(10**6, name)

    made = Scheduler()
    padding = pattern.MultiModalityDataPaddingPatternMultimodalTokens()
    values: dict[str, Any] = {
        "queue": queue,
        "model_config": SimpleNamespace(
            hf_config=processors.hf_config(folder), vocab_size=10**5, hf_eos_token_id={0}
        ),
        "pad_input_ids_func": padding.pad_input_tokens,
        # A session reads these; no Qwen tokenizer has a token that begins every text.
        "tokenizer": SimpleNamespace(bos_token_id=None, vocab_size=10**5),
        "max_req_input_len": 10**6,
        "server_args": Off(allow_auto_truncate=False),
        "sessions": {},
        "disaggregation_mode": module.DisaggregationMode.NULL,
    }
    sessions = _sessions()
    if hasattr(sessions, "SessionController"):
        values["session_controller"] = sessions.SessionController(Off())
    for name, value in values.items():
        with contextlib.suppress(AttributeError):
            setattr(made, name, value)
    return made


@contextlib.contextmanager
def _as_the_only_rank() -> Iterator[None]:
    """In releases whose processes keep their place among the ranks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            context = importlib.import_module("sglang.srt.runtime_context")
            stack.enter_context(context.get_parallel().override(pp_rank=0, tp_rank=0))
        yield


def _sessions() -> Any:
    for home in ("sglang.srt.session.session_controller", "sglang.srt.managers.session_controller"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(home)
    raise AssertionError("this release has no sessions")
