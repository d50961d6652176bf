"""miles: it sends expanded ids and data URLs.

Its wheel has two rollouts that take images. ``sglang_rollout.generate`` makes the first turn, and resumes an
aborted one with its ids. For several turns, a user writes a function around ``generate_endpoint_utils``, as
`miles_rollout` is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deepeyes_patch.errors import REFUSED
from tests.frameworks import judging
from tests.frameworks.driving import Child
from tests.frameworks.judging import PICTURES
from tests.frameworks.wire import Wire
from tests.lab import flags, server

FRAMEWORK = "miles"
ATTEMPTS = 60  # miles.utils.http_utils.post(max_retries=60)
SHOWN = {"three turns": ([1, 2, 2], PICTURES), "resumed": ([1, 1, 1], PICTURES[:1])}


@pytest.mark.parametrize("how", SHOWN)
def test_patched(how: str, child: Child, folder: Path, to_patched: Wire) -> None:
    pads = judging.placeholders(folder)
    report = child.run(folder, to_patched.url, PICTURES, pads, how=how)
    asked = to_patched.take()
    shown, images = SHOWN[how]
    assert [len(exchange.images) for exchange in asked] == shown
    for exchange in asked:
        assert all(image.startswith("data:image/png;base64,") for image in exchange.images)
        assert exchange.input_ids.count(pads[0]) > len(exchange.images), "expanded"
        assert exchange.sent["sampling_params"]["logit_bias"] == {str(pad): -100.0 for pad in pads}
    episode = judging.recorded(report)
    judging.assert_same_ids(folder, episode, asked, images)
    judging.assert_exact(folder, episode, images, pads)
    assert report["prompt_tokens"] == sum(exchange.prompt_tokens for exchange in asked)


def test_log_probs_by_prefill(child: Child, folder: Path, to_patched: Wire) -> None:
    """``--recompute-logprobs-via-prefill``: all ids after the first prompt, observations with images too."""
    pads = judging.placeholders(folder)
    report = child.run(folder, to_patched.url, PICTURES, pads, how="three turns", prefill=True)
    *_, scoring = to_patched.take()
    assert scoring.sent["sampling_params"]["max_new_tokens"] == 0
    episode = judging.recorded(report)
    (start, _), *_ = episode.spans
    everywhere = replace(episode, mask=[int(place >= start) for place in range(len(episode.ids))])
    judging.assert_exact(folder, everywhere, PICTURES)


@pytest.mark.parametrize("how", SHOWN)
def test_stock(how: str, child: Child, folder: Path, to_stock: Wire) -> None:
    """The first request ends in HTTP 500, sixty times."""
    report = child.run(folder, to_stock.url, PICTURES, judging.placeholders(folder), how=how)
    assert [exchange.status for exchange in to_stock.take()] == [500] * ATTEMPTS
    (name, message), *_ = report["raised"]
    assert name == "HTTPStatusError"
    assert "500 Internal Server Error" in message


def test_a_refusal_is_repeated_sixty_times(child: Child, folder: Path, to_patched: Wire) -> None:
    """The first answer is a placeholder, although it is a stop token. The second request holds it."""
    pad, *_ = judging.placeholders(folder)
    options = {"logit_bias": {pad: 100}, "stop_token_ids": [pad]}
    report = child.run(folder, to_patched.url, PICTURES, how="three turns", **options)
    first, *refused = to_patched.take()
    assert first.output_ids == [pad]
    assert [exchange.status for exchange in refused] == [400] * ATTEMPTS
    assert REFUSED in refused[0].answer["error"]["message"]
    (name, message), *_ = report["raised"]
    assert name == "HTTPStatusError"
    assert "400 Bad Request" in message
    assert REFUSED not in message, "the reason is in miles' log alone, at level INFO"


def test_an_engine_that_miles_starts(child: Child, folder: Path) -> None:
    """``sglang_engine.launch_server_process`` spawns it; the switch is in the environment of the parent."""
    port = server.free_port()
    fields = flags.server_args(model_path=str(folder), host="127.0.0.1", port=port)
    report = child.run(
        folder,
        f"http://127.0.0.1:{port}",
        PICTURES,
        judging.placeholders(folder),
        env={**server.QUICK, "DEEPEYES_PATCH": "1"},
        how="three turns",
        engine=fields,
    )
    episode = judging.recorded(report)
    assert report["prompt_tokens"] == sum(start for start, _ in episode.spans)
    judging.assert_exact(folder, episode, PICTURES, judging.placeholders(folder))
