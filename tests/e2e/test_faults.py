"""What goes wrong beside a request: a client that goes away, an image that fails in the middle of a batch.

Every neighbour must be answered as ``transformers`` does, and so must the next request.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import BAD, SHAPES, Sent
from tests.lab import client
from tests.lab.client import Answer
from tests.lab.server import Server

BROKEN = "bm90IGFuIGltYWdl"  # base64 of words
# A client leaves: while its images are processed, or when the first tokens have come.
MOMENTS = ("at once", "while it is processed", "in the stream")


def body(sent: Sent, new_tokens: int) -> dict[str, Any]:
    return {
        "input_ids": sent.prompt,
        "image_data": [client.as_base64(image) for image in sent.images],
        "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
        "stream": True,
    }


def leave(url: str, sent: Sent, moment: str) -> None:
    """Ask for a long answer and close the connection, with a reset."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        str(address.hostname), address.port, timeout=shapes.ANSWER_SECONDS
    )
    data = json.dumps(body(sent, 400))
    connection.request("POST", "/generate", data, {"Content-Type": "application/json"})
    assert connection.sock is not None
    held = connection.sock
    # Closed so, the other side is told at once.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if moment == "while it is processed":
        time.sleep(0.05)
    elif moment == "in the stream":
        answer = connection.getresponse()
        assert answer.status == 200
        assert b"output_ids" in answer.readline()
        answer.close()  # it holds the socket open
    held.close()
    connection.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_client_that_leaves(moment: str, folder: Path, patched: Server) -> None:
    """Its neighbours, before and after it, are right: no request sees another's ids."""
    leaving = [SHAPES["expanded, drifted between"](folder), SHAPES["short"](folder)]
    neighbours = [shapes.one_image(folder), SHAPES["history expanded, new turn short"](folder)] * 2
    with ThreadPoolExecutor(8) as pool:
        gone = [pool.submit(leave, patched.url, sent, moment) for sent in leaving]
        coming: list[Future[Answer | None]] = [
            pool.submit(shapes.ask, patched.url, sent) for sent in neighbours
        ]
        for each in gone:
            each.result()
    for sent, future in zip(neighbours, coming, strict=True):
        verdict = shapes.judge(folder, sent, future.result(), shapes.BATCHED_NOISE)
        assert verdict.exact, verdict
    shapes.assert_served(folder, patched, leaving[0])
    shapes.assert_refused(patched, BAD["a pad missing"](folder))


def test_an_image_that_fails_in_the_middle_of_a_batch(folder: Path, patched: Server, stock: Server) -> None:
    """The batch is refused as a whole, as stock does it with short ids; who asks beside it is served."""
    rows = [SHAPES["short"](folder) for _ in range(3)]
    data = [[client.as_base64(image) for image in row.images] for row in rows]
    data[1][1] = BROKEN
    ids = [row.prompt for row in rows]
    assert all(isinstance(one, list) for one in ids)
    beside = SHAPES["expanded"](folder)
    with ThreadPoolExecutor(2) as pool:
        neighbour = pool.submit(shapes.ask, patched.url, beside)
        answer = client.generate(patched.url, ids, image_data=data, timeout=shapes.ANSWER_SECONDS)
    assert answer.status == 400, answer.body
    assert "cannot identify image file" in answer.body["error"]["message"]
    verdict = shapes.judge(folder, beside, neighbour.result(), shapes.BATCHED_NOISE)
    assert verdict.exact, verdict
    theirs = client.generate(stock.url, ids, image_data=data, timeout=shapes.ANSWER_SECONDS)
    assert theirs.status in (400, 500), "stock, too, serves no row of it"
    shapes.assert_served(folder, patched, beside)
