"""Ways into a server beside ``/generate``, on a stock and a patched server that run side by side."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import PICTURES, SHAPES
from tests.lab import client
from tests.lab.server import Server


def test_two_servers_with_different_switches(folder: Path, stock: Server, patched: Server) -> None:
    """Asked at the same time, each gives its own result."""
    names = ["expanded", "text", "expanded, drifted between", "text"]
    sent = [(running, SHAPES[name](folder)) for name in names for running in (stock, patched)]
    with ThreadPoolExecutor(len(sent)) as pool:
        answers = list(pool.map(lambda one: shapes.ask(one[0].url, one[1]), sent))
    for (running, one), answer in zip(sent, answers, strict=True):
        verdict = shapes.judge(folder, one, answer)
        if running is patched or isinstance(one.prompt, str):
            assert verdict.exact, verdict
        else:
            assert verdict.status == 500, "stock dies of expanded ids"
    assert not shapes.announcements(stock)


# --- /v1/chat/completions with input_ids ----------------------------------------------------------------


def takes_ids() -> bool:
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    return "input_ids" in ChatCompletionRequest.model_fields


def chat(running: Server, image: Any, **fields: Any) -> tuple[int, str]:
    picture = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{client.as_base64(image)}"},
    }
    words = {"type": "text", "text": "Where is the red cup?"}
    request = {
        "model": "default",
        "messages": [{"role": "user", "content": [picture, words]}],
        "temperature": 0,
        "max_tokens": 4,
        **fields,
    }
    return client.post(f"{running.url}/v1/chat/completions", request)


def used(answer: tuple[int, str]) -> int:
    status, text = answer
    assert status == 200, text
    return int(json.loads(text)["usage"]["prompt_tokens"])


def test_chat_ids(folder: Path, stock: Server, patched: Server) -> None:
    """Where the field exists, SGLang drops the images: stock answers without them, ours refuses."""
    sent = shapes.one_image(folder)
    plain = used(chat(stock, PICTURES[0]))
    assert used(chat(patched, PICTURES[0])) == plain, "without ids both are stock"
    if not takes_ids():
        # The field is unknown, and passed over: the messages are the prompt.
        assert used(chat(stock, PICTURES[0], input_ids=sent.prompt)) == plain
        assert used(chat(patched, PICTURES[0], input_ids=sent.prompt)) == plain
        return
    blind = [chat(stock, picture, input_ids=sent.prompt) for picture in PICTURES[:2]]
    assert [used(answer) for answer in blind] == [len(sent.expected_ids)] * 2
    status, text = chat(patched, PICTURES[0], input_ids=sent.prompt)
    assert status == 400, text
    assert re.search(r"hold 98 image placeholder.* no image came with them", text), text


# --- gRPC -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    importlib.util.find_spec("sglang.srt.entrypoints.grpc_bridge") is None,
    reason="this release has no gRPC server of its own",
)
def test_the_native_grpc_server_asks_the_tokenizer_manager() -> None:
    """``--grpc-port``: its requests take the same way as those of HTTP, with ids and images."""
    from sglang.srt.entrypoints.grpc_bridge import RuntimeHandle

    taken: list[Any] = []

    async def work() -> None:
        async def generate_request(obj: Any, request: Any = None) -> Any:
            taken.append(obj)
            yield {}

        manager = SimpleNamespace(
            event_loop=asyncio.get_running_loop(),
            auto_create_handle_loop=lambda: None,
            generate_request=generate_request,
        )
        handle = RuntimeHandle(manager, None, None)
        handle.submit_request(
            req_type="generate",
            req_dict={"input_ids": [5, 6], "image_data": ["data:,"]},
            chunk_callback=lambda *args, **kwargs: None,
        )
        for _ in range(100):
            if taken:
                break
            await asyncio.sleep(0.05)

    asyncio.run(work())
    (obj,) = taken
    assert (type(obj).__name__, obj.input_ids, obj.image_data) == ("GenerateReqInput", [5, 6], ["data:,"])


def test_the_older_grpc_server_is_another_package() -> None:
    """``--grpc-mode``: requests come tokenized, to a servicer that no release brings along."""
    from sglang.srt.entrypoints import grpc_server

    assert importlib.util.find_spec("smg_grpc_servicer") is None
    with pytest.raises(ImportError, match="requires the smg-grpc-servicer package"):
        asyncio.run(grpc_server.serve_grpc(SimpleNamespace()))
