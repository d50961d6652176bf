"""Asks a server's ``/generate`` the way a rollout does: token ids or text, with images."""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

ANSWER_SECONDS = 120  # the first request of a server compiles kernels


@dataclass(frozen=True)
class Answer:
    """One response of ``/generate``.

    ``body`` is the parsed JSON (with ``stream``, the last chunk), or the raw text where it is not
    JSON. ``output_ids`` and ``logprobs`` are those of the generated tokens; both are empty when
    the request failed, and ``logprobs`` also when none were asked for.
    """

    status: int
    body: Any
    output_ids: list[int]
    logprobs: list[float]
    chunks: tuple[Any, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return int(self.body["meta_info"]["prompt_tokens"])


def generate(
    url: str,
    prompt: str | Sequence[int],
    images: Sequence[Image] | None = None,
    *,
    max_new_tokens: int = 4,
    return_logprob: bool = True,
    stream: bool = False,
    sampling: dict[str, Any] | None = None,
    timeout: float = ANSWER_SECONDS,
    **fields: Any,
) -> Answer:
    """Greedy by default, and past the end-of-sequence token. ``fields`` go into the request.

    An HTTP error is an answer; a server that does not answer in time raises `TimeoutError`.
    """
    request = {
        "text" if isinstance(prompt, str) else "input_ids": prompt,
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": max_new_tokens,
            "ignore_eos": True,
            **(sampling or {}),
        },
        "return_logprob": return_logprob,
        "stream": stream,
        **fields,
    }
    if images is not None:
        request["image_data"] = [as_base64(image) for image in images]
    return ask(url, request, timeout)


def ask(url: str, request: dict[str, Any], timeout: float = ANSWER_SECONDS) -> Answer:
    """`generate` for a request that is made already, whatever it holds."""
    status, text = post(f"{url}/generate", request, timeout)
    chunks = _events(text) if request.get("stream") and status == 200 else [_parsed(text)]
    return read(status, chunks[-1], chunks)


def read(status: int, body: Any, chunks: Sequence[Any] = ()) -> Answer:
    """The answer in a response's body, or in one row of the list that answers a batch."""
    if status != 200 or "meta_info" not in body:
        return Answer(status, body, [], [], tuple(chunks))
    # With log-probs asked for, each comes with its id; 0.5.3 then also begins `output_ids` with a
    # few tokens of the prompt. What was generated is always last.
    scored = body["meta_info"].get("output_token_logprobs") or []
    count = body["meta_info"]["completion_tokens"]
    ids = [int(token) for _, token, *_ in scored] or body.get("output_ids", [])
    if len(ids) < count:  # a stream of 0.5.3: each chunk has only its own ids
        ids = [token for chunk in chunks for token in chunk["output_ids"]]
    return Answer(
        status=status,
        body=body,
        output_ids=ids[-count:],
        logprobs=[float(score) for score, *_ in scored][-count:],
        chunks=tuple(chunks),
    )


def as_base64(image: Image) -> str:
    """PNG: lossless, so that the server sees the very pixels that the reference saw."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def post(url: str, request: dict[str, Any], timeout: float = ANSWER_SECONDS) -> tuple[int, str]:
    """(status, body) of a POST with a JSON body, HTTP errors included."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    message = urllib.request.Request(
        url, data=json.dumps(request).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with opener.open(message, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise TimeoutError(f"no answer from {url} in {timeout} s") from error
        raise


def _events(text: str) -> list[Any]:
    """The data of a server-sent event stream, without its closing mark."""
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.strip()]
    return [_parsed(line) for line in lines if line != "[DONE]"]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
