"""The wrappers that stop a Qwen-VL server which would run unrepaired. This module does not import torch.

SGLang must not start with a log that says *patched* if its requests do not run through our wrappers. That
happens with a processor of another class, with HTTP workers that do not load this package, and on a server
whose requests bypass the processor.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import subprocess
import sys
from typing import Any

from deepeyes_patch.errors import DeepEyesPatchError
from deepeyes_patch.observe import counters, outcomes
from deepeyes_patch.seams import table, table_server, wrapping
from deepeyes_patch.seams.examine import incompatible
from deepeyes_patch.seams.families import (
    keep_model,
    model_of,
    read_config,
    read_model,
    runs_through_ours,
    served_type,
)
from deepeyes_patch.seams.live import origin
from deepeyes_patch.seams.wrapping import Call
from deepeyes_patch.settings import RELAX_FLAG, SWITCH
from deepeyes_patch.startup.failed_start import heard

# The keys in the "video" part of --mm-process-config that set the size of frames.
_SIZING = ("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width")

# The class that takes requests over gRPC.
_SERVICER = "SGLangSchedulerServicer"

_ASK_SECONDS = 60
_ASK = "import sys; sys.exit(not any(type(f).__name__ == 'SGLangFinder' for f in sys.meta_path))"


@heard
def construct_processor(call: Call) -> None:
    """``__init__`` of the processor: raise the failure, if SGLang could not be patched."""
    for repair in ("processor", "video", "sampling"):
        outcomes.raise_failure(repair)
    _require_modules()
    call.proceed()
    processor = call.instance
    _refuse_displaced()
    if runs_through_ours(processor):
        _keep_model(processor)
        _refuse_sizing(processor)
    if getattr(getattr(processor, "server_args", None), "enable_metrics", False):
        counters.export()
    outcomes.announce()


def _require_modules() -> None:
    """Stop if SGLang no longer has a module of the table: the hook of that module has never run."""
    for seam in table.SEAMS:
        if seam.repair != "processor" or seam.optional_module or seam.module in sys.modules:
            continue
        if importlib.util.find_spec(seam.module) is None:
            raise incompatible("processor", [f"{seam.module} is missing, and {seam} with it"])


def _refuse_displaced() -> None:
    displaced = wrapping.displaced()
    if displaced:
        raise incompatible(
            "processor",
            [
                f"deepeyes-patch wrapped {name}, and another package has put "
                f"{origin(function)} in its place. One of the two must go: switch that "
                f"package's patch off (Relax's own: drop its flag {RELAX_FLAG}), or set {SWITCH}=off"
                for name, function in displaced
            ],
        )


def _keep_model(processor: Any) -> None:
    """Keep what the wrappers read of a model.

    A model outside the Qwen-VL line may lack something that they read. Then it is not served.
    """
    try:
        model = read_model(processor)
    except (AttributeError, TypeError, ValueError) as error:
        if served_type(getattr(processor, "hf_config", None)) is not None:
            problem = f"{type(processor).__name__} was constructed, but {error}"
            raise incompatible("processor", [problem]) from error
        model = None
    keep_model(processor, model)


def _refuse_sizing(processor: Any) -> None:
    sizing = sorted(set(_SIZING).intersection(getattr(processor, "video_config", None) or {}))
    if sizing and outcomes.is_patched("video"):
        raise incompatible(
            "video",
            [
                f"--mm-process-config sets {', '.join(sizing)} for videos, and with 'video' the HF processor "
                f"alone sizes frames. Set the bounds in the model's video preprocessor config instead"
            ],
        )


@heard
def get_processor(call: Call) -> Any:
    """``get_mm_processor``: stop a Qwen-VL model whose processor does not run through our wrappers."""
    processor = call.proceed()
    model_type = served_type(call.arguments["hf_config"])
    if model_type is None:
        return processor
    outcomes.raise_failure("processor")
    if model_of(processor) is None:
        raise incompatible(
            "processor",
            [
                f"model type {model_type} is served by {origin(type(processor))}, which does "
                f"not run through the Qwen-VL processor that deepeyes-patch has wrapped. Either switch "
                f"off what put that class there, or set {SWITCH}=off"
            ],
        )
    return processor


@heard
def launch_rust_server(call: Call) -> Any:
    """``RustServer.launch`` (0.5.17 and later, if asked for): refuse a Qwen-VL model.

    The Rust server replaces the tokenizer manager. Its compiled code tokenizes and processes images. No
    request would reach our wrappers, and expanded ids end in HTTP 500.
    """
    model_type = served_type(call.arguments["scheduler"].model_config.hf_config)
    if model_type is not None:
        raise incompatible(
            "processor",
            [
                f"model type {model_type} would be served by SGLang's Rust server (SGLANG_RUST_SERVER), "
                f"whose compiled code takes requests past everything that deepeyes-patch has wrapped. Either "
                f"unset SGLANG_RUST_SERVER, or set {SWITCH}=off"
            ],
        )
    return call.proceed()


@heard
def serve_grpc(call: Call) -> Any:
    """``serve_grpc`` (``--grpc-mode``, ``--smg-grpc-mode``): stop if no request would reach our wrappers.

    Requests arrive tokenized, with preprocessed images, and bypass the processor. From 0.5.10 on, another
    package takes them (``smg-grpc-servicer``), whose servicer we wrap. Before, SGLang takes them itself, and
    drops their images.
    """
    model_type = served_type(_hf_config(call.arguments["server_args"]))
    if model_type is None:
        return call.proceed()
    if hasattr(sys.modules[table_server.GRPC_SERVER], _SERVICER):
        raise incompatible(
            "processor",
            [
                f"model type {model_type} would be served over gRPC (--grpc-mode), and the gRPC server of "
                f"this SGLang drops the images of requests. Either serve it over HTTP, or set {SWITCH}=off"
            ],
        )
    # If the package is missing, SGLang says so better than we could.
    with contextlib.suppress(ImportError):
        importlib.import_module(table_server.GRPC_SERVICER)
    outcomes.raise_failure("processor")
    return call.proceed()


@heard
def construct_servicer(call: Call) -> None:
    """``__init__`` of the gRPC servicer: read what the wrappers need of the model; stop if it is missing."""
    outcomes.raise_failure("processor")
    config = _hf_config(call.arguments["server_args"])
    model = None
    if served_type(config) is not None:
        try:
            model = read_config(config)
        except (AttributeError, TypeError, ValueError) as error:
            problem = f"a model of type {config.model_type} would be served over gRPC, but {error}"
            raise incompatible("processor", [problem]) from error
    call.proceed()
    keep_model(call.instance, model)
    outcomes.announce()


@heard
def serve_rust(call: Call) -> Any:
    """``serve_rust`` of the gRPC servicer, if it is asked for: refuse a Qwen-VL model.

    Its compiled code hands requests to the scheduler, past the servicer that we wrap.
    """
    model_type = served_type(_hf_config(call.arguments["server_args"]))
    if model_type is not None:
        raise incompatible(
            "processor",
            [
                f"model type {model_type} would be served over gRPC by the Rust servicer (--servicer-impl, "
                f"SMG_SGLANG_SERVICER_IMPL), whose compiled code takes requests past everything that "
                f"deepeyes-patch has wrapped. Either use the Python servicer, or set {SWITCH}=off"
            ],
        )
    return call.proceed()


@heard
def start_http_workers(call: Call) -> Any:
    """``write_to_shared_memory``: all launch paths of HTTP workers pass start-up data through this function.

    HTTP workers (``--tokenizer-worker-num``, ``--enable-http2``) are new interpreters that tokenize. SGLang
    loads no plugins in them, so only our start-up files reach them. If Python does not read these files
    (``pip install --target``), the workers would run unrepaired, under a log that says *patched*. So a
    Qwen-VL model is refused.
    """
    model_type = served_type(_hf_config_of_workers(call.arguments["obj"]))
    if model_type is not None and not started_children_are_reached():
        raise DeepEyesPatchError(
            f"the HTTP workers of this server (--tokenizer-worker-num, --enable-http2) are Python processes "
            f"of their own, which would tokenize the requests of this {model_type} model unrepaired: a "
            f"Python that is started from here does not read deepeyes_patch.pth, and SGLang loads no "
            f"plugins there. Either install deepeyes-patch into site-packages (pip install without "
            f"--target), or use one tokenizer worker over HTTP/1.1, or set {SWITCH}=off."
        )
    return call.proceed()


def started_children_are_reached() -> bool:
    """Whether a Python that this process starts, as multiprocessing does, reads our start-up file."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    child = subprocess.run(
        [sys.executable, *flags, "-c", _ASK], stdin=subprocess.DEVNULL, timeout=_ASK_SECONDS, check=False
    )
    return child.returncode == 0


def _hf_config_of_workers(start_up_data: Any) -> Any:
    """The configuration of the model that the workers will serve; ``None`` if the data does not say it."""
    for part in start_up_data if isinstance(start_up_data, tuple) else ():
        if getattr(part, "model_path", None):
            return _hf_config(part)
    return None


def _hf_config(server_args: Any) -> Any:
    """The configuration of the model that a server is asked to serve, as SGLang reads it."""
    reader = importlib.import_module("sglang.srt.utils.hf_transformers_utils")
    return reader.get_config(
        server_args.model_path,
        trust_remote_code=server_args.trust_remote_code,
        revision=getattr(server_args, "revision", None),
    )
