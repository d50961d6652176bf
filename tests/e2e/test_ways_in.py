"""Ways into a server, on a stock and a patched one that run side by side."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import PICTURES, SHAPES, Sent
from tests.lab import client
from tests.lab.client import Answer
from tests.lab.server import Server


def test_two_servers_with_different_switches(folder: Path, stock: Server, patched: Server) -> None:
    """Asked at the same time, each gives its own result."""
    names = ["expanded", "text", "expanded, drifted between", "text"]
    sent = [(running, SHAPES[name](folder)) for name in names for running in (stock, patched)]
    with ThreadPoolExecutor(len(sent)) as pool:
        answers = list(pool.map(lambda one: shapes.ask(one[0].url, one[1]), sent))
    for (running, one), answer in zip(sent, answers, strict=True):
        verdict = shapes.judge(folder, one, answer, shapes.BATCHED_NOISE)
        if running is patched or isinstance(one.prompt, str):
            assert verdict.exact, verdict
        else:
            assert verdict.status == 500, "stock dies of expanded ids"
    assert not shapes.announcements(stock)


# --- /generate ------------------------------------------------------------------------------------------


def assert_rows(folder: Path, answer: Answer, rows: Sequence[Sent]) -> None:
    """The answer's rows are exact answers to ``rows``, in this order."""
    assert answer.status == 200, answer.body
    assert len(answer.body) == len(rows)
    for row, body in zip(rows, answer.body, strict=True):
        verdict = shapes.judge(folder, row, client.read(200, body), shapes.BATCHED_NOISE)
        assert verdict.exact, verdict


def generate(running: Server, sent: Sent, **fields: Any) -> Answer:
    return client.generate(
        running.url,
        sent.prompt,
        None if "image_data" in fields else sent.images,
        max_new_tokens=shapes.NEW_TOKENS,
        timeout=shapes.ANSWER_SECONDS,
        **fields,
    )


def sends_images_more_than_once() -> bool:
    """Whether SGLang copies a request's images for each of its ``n`` answers.

    Releases that do not (0.5.12.post1) send one handle of shared memory several times, and the scheduler
    frees it the first time: the server dies of ``n`` > 1 with images, whatever the prompt.
    """
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    return "mm_inputs" in inspect.getsource(TokenizerManager._handle_batch_request)


several = pytest.mark.skipif(
    not sends_images_more_than_once(), reason="SGLang itself dies of n > 1 with images here"
)


@several
@pytest.mark.parametrize("name", ["expanded, drifted between", "history expanded, new turn short"])
def test_several_answers_to_one_prompt(name: str, folder: Path, stock: Server, patched: Server) -> None:
    sent = SHAPES[name](folder)
    # With n > 1 SGLang takes even one prompt for a batch, and wants a list of images for each row.
    data = [[client.as_base64(image) for image in sent.images]]
    assert_rows(folder, generate(patched, sent, image_data=data, sampling={"n": 3}), [sent] * 3)
    assert generate(stock, sent, image_data=data, sampling={"n": 3}).status == 500


@several
def test_several_answers_to_each_prompt_of_a_batch(folder: Path, stock: Server, patched: Server) -> None:
    rows = [SHAPES["expanded, drifted after"](folder), shapes.one_image(folder)]
    fields = {
        "input_ids": [row.prompt for row in rows],
        "image_data": [[client.as_base64(image) for image in row.images] for row in rows],
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": shapes.NEW_TOKENS,
            "ignore_eos": True,
            "n": 2,
        },
        "return_logprob": True,
    }
    status, text = client.post(f"{patched.url}/generate", fields, shapes.ANSWER_SECONDS)
    assert status == 200, text
    assert_rows(folder, client.read(status, json.loads(text)), [rows[0], rows[0], rows[1], rows[1]])
    assert client.post(f"{stock.url}/generate", fields, shapes.ANSWER_SECONDS)[0] == 500


def test_a_stream(folder: Path, stock: Server, patched: Server) -> None:
    sent = SHAPES["expanded, drifted between"](folder)
    answer = generate(patched, sent, stream=True)
    assert len(answer.chunks) > 1
    verdict = shapes.judge(folder, sent, answer)
    assert verdict.exact, verdict
    # The status line is out before stock fails, and then it says no more.
    with pytest.raises(http.client.IncompleteRead):
        generate(stock, sent, stream=True)


FORMS: dict[str, Callable[[Any, Path], str]] = {
    "base64": lambda image, file: client.as_base64(image),
    "data URL": lambda image, file: f"data:image/png;base64,{client.as_base64(image)}",
    "path": lambda image, file: str(file),
    "file URL": lambda image, file: file.as_uri(),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_an_image(form: str, folder: Path, stock: Server, patched: Server, tmp_path: Path) -> None:
    sent = SHAPES["expanded, drifted between"](folder)
    data = []
    for number, image in enumerate(sent.images):
        image.save(file := tmp_path / f"{number}.png")
        data.append(FORMS[form](image, file))
    answer = generate(patched, sent, image_data=data)
    assert answer.status == 200, answer.body
    verdict = shapes.judge(folder, sent, answer)
    assert verdict.exact, verdict
    assert generate(stock, sent, image_data=data).status == 500


# --- /v1/chat/completions with input_ids ----------------------------------------------------------------


def takes_ids() -> bool:
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    return "input_ids" in ChatCompletionRequest.model_fields


def chat(running: Server, *images: Any, **fields: Any) -> tuple[int, str]:
    pictures = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{client.as_base64(image)}"}}
        for image in images
    ]
    words = {"type": "text", "text": "Where is the red cup?"}
    request = {
        "model": "default",
        "messages": [{"role": "user", "content": [*pictures, words]}],
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


# --- /v1/chat/completions without ids -------------------------------------------------------------------


@pytest.mark.parametrize("images", [0, 2], ids=["no images", "two images"])
def test_chats_get_the_stock_answer(images: int, stock: Server, patched: Server) -> None:
    answers = []
    pictures = shapes.unseen(images, seed=1002)
    for running in (stock, patched):
        # A cached prefix or feature would change the last bits, and each server has heard other requests.
        assert client.post(f"{running.url}/flush_cache", {})[0] == 200
        status, text = chat(running, *pictures, max_tokens=16, logprobs=True, top_logprobs=1, ignore_eos=True)
        assert status == 200, text
        answers.append(json.loads(text))
    theirs, ours = answers
    assert ours["usage"] == theirs["usage"]
    (mine,), (other,) = ours["choices"], theirs["choices"]
    assert mine == other
    assert len(mine["logprobs"]["content"]) == 16


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


@pytest.mark.parametrize("words", ["What does <|image_pad|> mean?", "And <|vision_start|><|video_pad|>?"])
def test_a_chat_that_speaks_of_a_placeholder(words: str, stock: Server, patched: Server) -> None:
    """SGLang 0.5.23 makes ids of a chat without media; no image was lost there."""
    request = {
        "model": "x",
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 8,
        "temperature": 0,
    }
    answers = [client.post(f"{running.url}/v1/chat/completions", request) for running in (stock, patched)]
    assert [status for status, _ in answers] == [200, 200], answers
    choices = [json.loads(text)["choices"][0]["message"]["content"] for _, text in answers]
    assert choices[0] == choices[1]
