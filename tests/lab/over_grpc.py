"""SGLang's gRPC server: the package that it needs, its messages, and a client.

The package is installed beside a release, on the first call: SGLang names it, and its wheel does not hold it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.lab import environments, flags, server
from tests.lab.server import Server, ServerFailed

if TYPE_CHECKING:
    import torch

# A version of smg-grpc-servicer that runs with a release of SGLang.
SERVICERS = {"0.5.12.post1": "0.5.6", "0.5.23": "0.14.1"}
_BESIDE = (
    "smg-grpc-proto==0.4.28",
    "grpcio==1.85.3",
    "grpcio-health-checking==1.85.1",
    "grpcio-reflection==1.85.1",
    "protobuf==7.36.2",
)
ANSWER_SECONDS = 90
READY = "The server is fired up and ready to roll!"


def servicer() -> str | None:
    """The version of the servicer for the installed release; None: none is known that runs with it."""
    return SERVICERS.get(flags.installed().version)


def layer() -> Path:
    """The folder with the servicer and what it needs, installed on the first call."""
    return environments.packages_layer("grpc", f"smg-grpc-servicer=={servicer()}", *_BESIDE)


def messages() -> Any:
    """The module of the messages, from `layer`, which goes on this process's path."""
    if str(layer()) not in sys.path:
        sys.path.append(str(layer()))
    from smg_grpc_proto import sglang_scheduler_pb2

    return sglang_scheduler_pb2


@dataclass
class Asked:
    """A request to generate, as a client of the gRPC server makes it.

    ``grids`` int64 [images, 3] and ``pixels`` float32 [patches, width]: ``None`` without images. ``runs``:
    (position, length) of each image's placeholders. ``more``: further fields of ``mm_inputs``.
    """

    ids: Sequence[int]
    grids: torch.Tensor | None = None
    pixels: torch.Tensor | None = None
    runs: Sequence[tuple[int, int]] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def message(self, new_tokens: int = 8) -> Any:
        pb = messages()
        media = dict(self.more)
        if self.pixels is not None:
            media["pixel_values"] = _tensor(pb, self.pixels)
            media["mm_placeholders"] = [pb.PlaceholderRange(offset=a, length=n) for a, n in self.runs]
        if self.grids is not None:
            media["model_specific_tensors"] = {"image_grid_thw": _tensor(pb, self.grids)}
        return pb.GenerateRequest(
            request_id=f"r{time.monotonic_ns()}",
            tokenized=pb.TokenizedInput(input_ids=list(self.ids)),
            mm_inputs=pb.MultimodalInputs(**media) if media else None,
            return_logprob=True,
            logprob_start_len=-1,
            sampling_params=pb.SamplingParams(
                temperature=0.0,
                top_p=1.0,
                top_k=-1,
                repetition_penalty=1.0,
                n=1,
                max_new_tokens=new_tokens,
                ignore_eos=True,
            ),
        )


def _tensor(pb: Any, tensor: torch.Tensor) -> Any:
    name = str(tensor.dtype).removeprefix("torch.")
    return pb.TensorData(data=tensor.numpy().tobytes(), shape=list(tensor.shape), dtype=name)


@dataclass(frozen=True)
class Told:
    """The answer to a request: its tokens and their log-probs, or the name of the error and its message."""

    output_ids: list[int]
    logprobs: list[float]
    prompt_tokens: int = 0
    code: str = "OK"
    message: str = ""


def ask(running: Server, asked: Asked, new_tokens: int = 8) -> Told:
    """Send one request, and wait for the whole answer."""
    message = asked.message(new_tokens)
    import grpc
    from smg_grpc_proto import sglang_scheduler_pb2_grpc

    with grpc.insecure_channel(running.url.removeprefix("http://")) as channel:
        stub = sglang_scheduler_pb2_grpc.SglangSchedulerStub(channel)
        try:
            answer = list(stub.Generate(message, timeout=ANSWER_SECONDS))[-1].complete
        except grpc.RpcError as error:
            return Told([], [], code=error.code().name, message=error.details())
    logprobs = list(answer.output_logprobs.token_logprobs)
    return Told(list(answer.output_ids), logprobs, answer.prompt_tokens)


@contextlib.contextmanager
def serve(model_dir: Path, env: Mapping[str, str | None]) -> Iterator[Server]:
    """A server that has told its log that it is ready: it has no HTTP to ask."""
    with server.started(model_dir, beside(env), ["--grpc-mode"], None) as running:
        deadline = time.monotonic() + server.START_SECONDS
        while READY not in running.log_text():
            if running.process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"the gRPC server did not start\n{running.log_text()[-server.TAIL :]}")
            time.sleep(0.3)
        yield running


def beside(env: Mapping[str, str | None]) -> dict[str, str | None]:
    """The environment of a server that finds the servicer, too."""
    path = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(layer()))))
    return {**env, "PYTHONPATH": path}
