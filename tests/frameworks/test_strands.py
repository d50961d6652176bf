"""strands-sglang: it keeps and sends ids with one placeholder an image."""

from __future__ import annotations

from pathlib import Path

from deepeyes_patch.errors import REFUSED
from tests.frameworks import judging
from tests.frameworks.driving import Child
from tests.frameworks.judging import PICTURES, Played
from tests.frameworks.wire import Wire

FRAMEWORK = "strands"
# The first attempt, and SGLangClient(max_retries=60).
ATTEMPTS = 61


def play(child: Child, folder: Path, wire: Wire) -> Played:
    """An episode as the trainer gets it, with the images expanded; and the requests of its turns."""
    report = child.run(folder, wire.url, PICTURES, judging.placeholders(folder))
    return judging.expanded(folder, report, PICTURES), wire.take()


def test_patched(child: Child, folder: Path, to_patched: Wire) -> None:
    pads = judging.placeholders(folder)
    episode, asked = play(child, folder, to_patched)
    assert [len(exchange.images) for exchange in asked] == [1, 2, 2]
    assert [exchange.input_ids.count(pads[0]) for exchange in asked] == [1, 2, 2]
    for exchange in asked:
        assert exchange.sent["return_logprob"]
        assert all(image.startswith("data:image/png;base64,") for image in exchange.images)
        assert exchange.sent["sampling_params"]["logit_bias"] == {str(pad): -100.0 for pad in pads}
    judging.assert_same_ids(folder, episode, asked, PICTURES)
    judging.assert_exact(folder, episode, PICTURES, pads)


def test_stock(child: Child, folder: Path, to_stock: Wire, release: str) -> None:
    """0.5.12.post1 tokenizes the ids again and serves others, silently. 0.5.23 keeps ids such as these."""
    episode, asked = judging.until_drifted(folder, lambda: play(child, folder, to_stock))
    if release == "0.5.23":
        judging.assert_same_ids(folder, episode, asked, PICTURES)
        judging.assert_exact(folder, episode, PICTURES, judging.placeholders(folder))
    else:
        judging.assert_served_wrong(folder, episode, asked, PICTURES)


def test_a_refusal_is_repeated_sixty_times(child: Child, folder: Path, to_patched: Wire) -> None:
    """The first answer is a placeholder, which the second request holds."""
    pad, *_ = judging.placeholders(folder)
    sampling = {"logit_bias": {pad: 100}, "stop_token_ids": [pad]}
    report = child.run(folder, to_patched.url, PICTURES, sampling=sampling)
    first, *refused = to_patched.take()
    assert first.output_ids == [pad]
    assert [exchange.status for exchange in refused] == [400] * ATTEMPTS
    (outer, _), (inner, message) = report["raised"]
    assert (outer, inner) == ("EventLoopException", "SGLangHTTPError")
    assert REFUSED in message
