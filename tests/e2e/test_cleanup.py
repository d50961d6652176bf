"""A thousand refusals leave nothing in a server: its memory stays, and it ends when it is told to.

In stock, 0.5.10 to 0.5.13 keep each request that raises, with its images, and wait for it at the end.
"""

from __future__ import annotations

import base64
import importlib
import io
import random
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e import shapes
from tests.lab import client, managers, processors, server
from tests.load import memory
from tests.sglang import rollouts

REFUSALS = 1000
END_SECONDS = 30
# What Python and malloc keep of requests of 2 MB. All of the refused ones together are 1,800 MiB.
NOISE = 200


@pytest.fixture(scope="module")
def picture() -> str:
    """A PNG of 1.8 MB, as a data URL."""
    noise = Image.frombytes("RGB", (800, 560), random.Random(1).randbytes(800 * 560 * 3))
    with io.BytesIO() as file:
        noise.save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_refusals_leave_nothing(folder: Path, picture: str) -> None:
    ids = rollouts.expanded(folder, [rollouts.picture(448, 224)] * 2).ids
    held = []
    with server.serve(folder, env=shapes.PATCHED) as running:
        for number in range(REFUSALS):
            answer = client.generate(running.url, ids, image_data=[picture], return_logprob=False)
            assert answer.status == 400, answer.body
            if number in (REFUSALS // 5, REFUSALS - 1):
                held.append(memory.resident(running.pid)["tokenizer manager"])
        assert held[1] - held[0] < NOISE, held
        took = server.ends(running, END_SECONDS)
        assert took is not None, running.log_text()[-2000:]


def test_stock_waits_for_requests_that_raised(folder: Path) -> None:
    with server.serve(folder, env=shapes.STOCK) as running:
        for _ in range(3):
            answer = client.generate(running.url, [1] * 40_000, return_logprob=False)
            assert answer.status == 400, answer.body
        took = server.ends(running, END_SECONDS)
    processors.processor_class()  # on 0.5.3 the manager alone runs into a circular import
    stock = importlib.import_module(managers.MODULE).TokenizerManager
    assert (took is None) == managers.keeps_what_raises(stock)
