"""verl's SGLang server in its Ray actor; the scheduler's input is recorded."""

from __future__ import annotations

import dataclasses
import os
import types
from typing import Any

import msgspec
import ray
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.sglang_rollout import async_sglang_server
from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer, SGLangReplica

import deepeyes_patch


class Server(SGLangHttpServer):
    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        self._mended = bool(self.config.custom["mend"]) and mend()
        self._server_address = "127.0.0.1"
        await super().launch_server(*args, **kwargs)
        self._sent: list[dict[str, Any]] = []
        send = self.tokenizer_manager._send_one_request

        def noted(tokenized: Any, *more: Any) -> Any:
            bias = tokenized.sampling_params.logit_bias
            self._sent.append({"ids": list(tokenized.input_ids), "logit_bias": bias})
            return send(tokenized, *more)

        self.tokenizer_manager._send_one_request = noted

    async def witness(self) -> dict[str, Any]:
        return {
            "sent": self._sent,
            "mended": self._mended,
            "pid": os.getpid(),
            "state": deepeyes_patch.status(),
            "skip_tokenizer_init": self.tokenizer_manager.tokenizer is None,
        }


class Replica(SGLangReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(Server)


class Servers(LLMServerManager):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.rollout_replica_class = Replica
        super().__init__(*args, **kwargs)


def mend() -> bool:
    """Let verl 0.9.1 start on releases whose ``ServerArgs`` is a Struct of msgspec; whether it has to be.

    verl takes the names of its fields from ``dataclasses.fields``, and nothing else from that module.
    """
    if dataclasses.is_dataclass(async_sglang_server.ServerArgs):
        return False
    async_sglang_server.dataclasses = types.SimpleNamespace(fields=msgspec.structs.fields)
    return True
