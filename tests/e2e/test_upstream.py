"""The bug reports in ``docs/upstream``: each reproduction, on a stock server and on a changed one.

Our package is off on both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import SHAPES
from tests.e2e.test_prompt_logprobs import ask, assert_scored, scored
from tests.lab import client, flags, models, server
from tests.lab.server import Server
from tests.sglang import rollouts
from tests.upstream import changes

SECONDS = 120
END_SECONDS = 120
# What the change refuses, of the requests of `shapes.BAD`, and an image that SGLang refuses.
UNFIT = (
    *("a pad missing", "a pad extra", "an image missing", "a stray pad", "a video pad"),
    "an image that cannot be decoded",
)

pytestmark = pytest.mark.skipif(
    flags.installed().version != changes.RELEASE, reason=f"the changes are made for {changes.RELEASE}"
)


def reproduce(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = changes.FOLDER / name / "reproduce.py"
    command = [sys.executable, "-W", "ignore", str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def asked(running: Server) -> str:
    return f"{running.url}/generate"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changes.applied(tmp_path_factory.mktemp("changed") / "copy", *changes.names())


@pytest.fixture(scope="module")
def changed(folder: Path, copy: Path) -> Iterator[Server]:
    with server.serve(folder, env={**shapes.STOCK, "PYTHONPATH": str(copy)}) as running:
        yield running


def test_expanded_ids(folder: Path, stock: Server, changed: Server) -> None:
    assert reproduce("expanded-input-ids", folder, asked(stock)).stdout.startswith("500 ")
    assert_served(reproduce("expanded-input-ids", folder, asked(changed)))


def test_expanded_ids_that_do_not_fit(folder: Path, changed: Server) -> None:
    """A client's mistake is HTTP 400, and the next request is right."""
    for name in UNFIT:
        bad = shapes.BAD[name](folder)
        answer = client.ask(changed.url, {"input_ids": bad.ids, "image_data": bad.image_data})
        assert answer.status == 400, (name, answer.body)
    assert_served(reproduce("expanded-input-ids", folder, asked(changed)))


def test_expanded_ids_of_qwen2_5_vl(copy: Path) -> None:
    """Stock never answers."""
    folder = models.ensure("qwen2_5_vl")
    with server.serve(folder, env=shapes.STOCK) as running:
        assert "ReadTimeout" in reproduce("expanded-input-ids", folder, asked(running)).stderr
    with server.serve(folder, env={**shapes.STOCK, "PYTHONPATH": str(copy)}) as running:
        assert_served(reproduce("expanded-input-ids", folder, asked(running)))


def assert_served(done: subprocess.CompletedProcess[str]) -> None:
    status, sent, seen = done.stdout.split()
    assert status == "200"
    assert sent == seen, "not as many ids as were sent"


def test_prompt_logprobs(folder: Path, stock: Server, changed: Server) -> None:
    image = rollouts.vision(folder).image
    before, after = (
        json.loads(reproduce("prompt-logprobs-at-images", asked(running)).stdout)
        for running in (stock, changed)
    )
    assert image not in before
    assert before == [0 if token == image else token for token in after]
    for name in ("text", "expanded", "history expanded, new turn short"):
        sent = SHAPES[name](folder)
        assert_scored(folder, sent, scored(ask(changed, sent)))


def test_negative_logprob_start_len(folder: Path, changed: Server) -> None:
    """The last test of this file that asks the changed server: it must still be there."""
    with server.serve(folder, env=shapes.STOCK) as running:
        # The connection breaks, or no answer comes while SGLang looks for the cause of the crash.
        done = reproduce("negative-logprob-start-len", asked(running))
        assert "ConnectionError" in done.stderr or "ReadTimeout" in done.stderr
        running.process.wait(END_SECONDS)
    said = reproduce("negative-logprob-start-len", asked(changed)).stdout
    assert said.startswith("400 ")
    assert "logprob_start_len must be" in said
    sent = SHAPES["text"](folder)
    assert client.generate(changed.url, sent.prompt, sent.images).status == 200
