"""AReaL: it sends PNGs in bare base64, with expanded ids; ``ArealOpenAI`` with one placeholder an image.

AReaL has no option for a ``logit_bias``. So the server forbids placeholders: the switch ``sampling``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deepeyes_patch.errors import REFUSED
from tests.e2e import shapes
from tests.frameworks import judging, wire
from tests.frameworks.driving import Child
from tests.frameworks.judging import PICTURES, Played
from tests.frameworks.wire import Wire
from tests.lab import policies, server

FRAMEWORK = "areal"
ATTEMPTS = 3  # InferenceEngineConfig.request_retries
SHOWN = {"rlvr": [1], "turns": [1, 2, 2], "openai": [1, 2, 2]}


@pytest.fixture(scope="module")
def policy() -> Path:
    """It samples placeholders at most places, unless they are forbidden."""
    return policies.ensure()


@pytest.fixture(scope="module")
def forbidding(policy: Path) -> Iterator[str]:
    switch = {**shapes.STOCK, "DEEPEYES_PATCH": "processor,mrope,sampling"}
    with server.serve(policy, env=switch) as running:
        yield running.url


@pytest.fixture
def to_forbidding(forbidding: str) -> Iterator[Wire]:
    with wire.between(forbidding) as recording:
        yield recording


def play(how: str, child: Child, folder: Path, to: Wire) -> Played | None:
    report, asked = child.run(folder, to.url, PICTURES, how=how), to.take()
    if "ids" not in report:
        print(report["raised"])
        return None
    return judging.expanded(folder, report, PICTURES[: SHOWN[how][-1]]), asked


@pytest.mark.parametrize("how", SHOWN)
def test_patched(how: str, child: Child, policy: Path, to_forbidding: Wire) -> None:
    pads = judging.placeholders(policy)
    played = play(how, child, policy, to_forbidding)
    assert played is not None
    episode, asked = played
    assert [len(exchange.images) for exchange in asked] == SHOWN[how]
    for exchange in asked:
        assert all(image.startswith("iVBOR") for image in exchange.images), "PNG in base64, and no data URL"
        assert (exchange.input_ids.count(pads[0]) == len(exchange.images)) == (how == "openai")
        assert "logit_bias" not in exchange.sent["sampling_params"]
        assert not set(pads) & set(exchange.output_ids)
    images = PICTURES[: SHOWN[how][-1]]
    judging.assert_same_ids(policy, episode, asked, images)
    judging.assert_exact(policy, episode, images, pads)


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
    """The test puts a placeholder in the place of the first answer: this model samples hardly any."""
    pad, *_ = judging.placeholders(folder)
    report = child.run(folder, to_patched.url, PICTURES, how="turns", said=[pad])
    _, *refused = to_patched.take()
    assert [exchange.status for exchange in refused] == [400] * ATTEMPTS
    assert REFUSED in refused[0].answer["error"]["message"]
    (name, message), *_ = report["raised"]
    assert name == "RuntimeError"
    assert f"Failed after {ATTEMPTS} retries each" in message
    assert "status=400" in message
    assert REFUSED not in message, "the reason is nowhere"
    assert refused[0].images[0] in message, "the request is, with its images"
