"""AReaL: it sends PNGs in bare base64, with expanded ids; ``ArealOpenAI`` with one placeholder an image.

AReaL has no option that forbids ids. The server has: ``--preferred-sampling-params``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.frameworks import judging, wire
from tests.frameworks.driving import Child
from tests.frameworks.judging import PICTURES, Played
from tests.frameworks.wire import Wire
from tests.lab import client, reference, server
from tests.lab.server import Server

FRAMEWORK = "areal"
ATTEMPTS = 3  # InferenceEngineConfig.request_retries
SHOWN = {"rlvr": [1], "turns": [1, 2, 2], "openai": [1, 2, 2]}


PROMPT = [7, 8, 9]


@pytest.fixture(scope="module")
def likeliest(folder: Path) -> int:
    """The id that follows ``PROMPT``."""
    return reference.greedy(folder, PROMPT, None, None, 1)[0][0]


@pytest.fixture(scope="module")
def without_pads(folder: Path, likeliest: int) -> Iterator[str]:
    """A patched server that samples no placeholder; nor that one id, so that a test can see it."""
    forbidden = [*judging.placeholders(folder), likeliest]
    args = ["--preferred-sampling-params", json.dumps({"logit_bias": dict.fromkeys(forbidden, -100)})]
    with server.serve(folder, env=shapes.PATCHED, args=args) as running:
        yield running.url


@pytest.fixture
def to_patched(without_pads: str) -> Iterator[Wire]:
    with wire.between(without_pads) as recording:
        yield recording


def play(how: str, child: Child, folder: Path, to: Wire) -> Played:
    report = child.run(folder, to.url, PICTURES, how=how)
    assert "ids" in report, report
    return judging.expanded(folder, report, PICTURES[: SHOWN[how][-1]]), to.take()


@pytest.mark.parametrize("how", SHOWN)
def test_patched(how: str, child: Child, folder: Path, to_patched: Wire) -> None:
    pad, _ = judging.placeholders(folder)
    episode, asked = play(how, child, folder, to_patched)
    assert [len(exchange.images) for exchange in asked] == SHOWN[how]
    for exchange in asked:
        assert all(image.startswith("iVBOR") for image in exchange.images), "PNG in base64, and no data URL"
        assert (exchange.input_ids.count(pad) == len(exchange.images)) == (how == "openai")
        assert "logit_bias" not in exchange.sent["sampling_params"]
    images = PICTURES[: SHOWN[how][-1]]
    judging.assert_same_ids(folder, episode, asked, images)
    judging.assert_exact(folder, episode, images)


@pytest.mark.parametrize("how", ["rlvr", "turns"])
def test_stock(how: str, child: Child, folder: Path, to_stock: Wire) -> None:
    report = child.run(folder, to_stock.url, PICTURES, how=how)
    assert [exchange.status for exchange in to_stock.take()] == [500] * ATTEMPTS
    (name, message), *_ = report["raised"]
    assert name == "RuntimeError"
    assert "status=500" in message


def test_stock_with_one_placeholder(child: Child, folder: Path, to_stock: Wire, release: str) -> None:
    """0.5.12.post1 tokenizes the ids again and serves others, silently. 0.5.23 keeps ids such as these."""
    episode, asked = judging.until_drifted(folder, lambda: play("openai", child, folder, to_stock))
    if release == "0.5.23":
        judging.assert_same_ids(folder, episode, asked, PICTURES)
        judging.assert_exact(folder, episode, PICTURES)
    else:
        judging.assert_served_wrong(folder, episode, asked, PICTURES)


def test_a_refusal_is_repeated_three_times(child: Child, folder: Path, to_patched: Wire) -> None:
    """Neither AReaL nor this server can be made to sample a placeholder, so the test says that it was."""
    pad, _ = judging.placeholders(folder)
    report = child.run(folder, to_patched.url, PICTURES, how="turns", said=[pad])
    _, *refused = to_patched.take()
    assert [exchange.status for exchange in refused] == [400] * ATTEMPTS
    assert judging.REFUSED in refused[0].answer["error"]["message"]
    (name, message), *_ = report["raised"]
    assert name == "RuntimeError"
    assert f"Failed after {ATTEMPTS} retries each" in message
    assert "status=400" in message
    assert judging.REFUSED not in message, "the reason is nowhere"


def test_what_the_flag_forbids_is_not_sampled(likeliest: int, without_pads: str, stock: Server) -> None:
    """Greedy decoding would take it."""
    assert client.generate(stock.url, PROMPT, max_new_tokens=1).output_ids == [likeliest]
    (other,) = client.generate(without_pads, PROMPT, max_new_tokens=1).output_ids
    assert other != likeliest
