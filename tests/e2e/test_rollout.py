"""A stock server and a patched one, side by side, with the tiny Qwen3-VL."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.e2e.shapes import BAD, SHAPES, Sent
from tests.lab import client, flags
from tests.lab.server import Server
from tests.sglang import rollouts

# What stock SGLang does with each shape. "right"; "other tokens" (it decodes the ids and tokenizes the text
# again, and serves what that gives); "wrong positions" (of the right tokens); or the HTTP status.
STOCK: dict[str, dict[str, str | int]] = {
    "0.5.3": {
        "text": "wrong positions",
        "short": "wrong positions",
        "short, drifted": "other tokens",
        "expanded": "wrong positions",
        "expanded, drifted before": "other tokens",
        "expanded, drifted between": "other tokens",
        "expanded, drifted after": "other tokens",
        "history expanded, new turn short": "wrong positions",
    },
    "0.5.12.post1": {
        "text": "right",
        "short": "right",
        "short, drifted": "other tokens",
        "expanded": 500,
        "expanded, drifted before": 500,
        "expanded, drifted between": 500,
        "expanded, drifted after": 500,
        "history expanded, new turn short": 500,
    },
    "0.5.23": {
        "text": "right",
        "short": "right",
        "short, drifted": "right",
        "expanded": 500,
        "expanded, drifted before": 500,
        "expanded, drifted between": 500,
        "expanded, drifted after": 500,
        "history expanded, new turn short": 500,
    },
}
# These two have the same processors, models and rope, to the letter.
STOCK["0.5.3.post1"] = STOCK["0.5.3"]


@pytest.mark.parametrize("name", SHAPES)
def test_patched_is_exact(name: str, folder: Path, patched: Server) -> None:
    shapes.assert_served(folder, patched, SHAPES[name](folder))


def test_patched_rollout_of_three_turns_is_exact(folder: Path, patched: Server) -> None:
    turns = list(shapes.rollout(folder, patched.url))
    for turn, (sent, answer) in enumerate(turns):
        assert answer is not None, f"no answer in turn {turn}"
        assert answer.status == 200, answer.body
        verdict = shapes.judge(folder, sent, answer)
        assert verdict.exact, (turn, verdict)
    # The ids of a turn begin with those of the turn before and the tokens that the server sampled then.
    for (before, answer), (after, _) in itertools.pairwise(turns):
        assert answer is not None
        sampled = [*before.expected_ids, *answer.output_ids]
        assert after.expected_ids[: len(sampled)] == sampled
    assert len(turns) == 3


@pytest.mark.parametrize("name", SHAPES)
def test_stock(name: str, folder: Path, stock: Server, release: str) -> None:
    sent = SHAPES[name](folder)
    answer = shapes.ask(stock.url, sent)
    assert answer is not None, "no answer in time"
    verdict = shapes.judge(folder, sent, answer)
    expected = STOCK[release][name]
    if expected == "right":
        assert verdict.exact, verdict
    elif expected == "other tokens":
        canonical = rollouts.short(folder, PICTURES).expected_ids
        assert canonical != sent.expected_ids
        assert verdict.tokens_used == len(canonical) != len(sent.expected_ids)
        assert not verdict.exact
    elif expected == "wrong positions":
        assert verdict.tokens_used == len(sent.expected_ids)
        assert verdict.error is not None
        assert verdict.error > shapes.WRONG
    else:
        assert verdict.status == expected, answer.body


PICTURES = shapes.PICTURES[:2]


def test_stock_rollout_fails_from_the_first_turn_on(folder: Path, stock: Server, release: str) -> None:
    turns = list(shapes.rollout(folder, stock.url))
    assert len(turns) == 3
    for turn, (sent, answer) in enumerate(turns):
        assert answer is not None, f"no answer in turn {turn}"
        if isinstance(status := STOCK[release]["expanded"], int):
            assert answer.status == status, answer.body
        else:
            verdict = shapes.judge(folder, sent, answer)
            assert verdict.error is not None, answer.body
            assert verdict.error > shapes.WRONG, (turn, verdict)


@pytest.mark.parametrize("images", [0, 2], ids=["no images", "two images"])
def test_text_prompts_get_the_stock_answer(images: int, stock: Server, patched: Server) -> None:
    # A cached prefix or feature would change the last bits, and one token is enough for one.
    for server in (stock, patched):
        assert client.post(f"{server.url}/flush_cache", {})[0] == 200
    text = f"Stock or patched, with {images} images? {rollouts.conversation(images)}"
    pictures = shapes.unseen(images, seed=1001) or None
    ours, theirs = (client.generate(s.url, text, pictures, max_new_tokens=16) for s in (patched, stock))
    assert theirs.status == ours.status == 200
    assert len(ours.output_ids) == 16
    assert ours.prompt_tokens == theirs.prompt_tokens
    if images and not flags.interleaves():
        # The one answer that the repaired rope is there to change; test_rope.py judges both.
        assert ours.logprobs != theirs.logprobs
        return
    assert ours.output_ids == theirs.output_ids
    assert ours.logprobs == theirs.logprobs


# --- bad requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str, folder: Path, patched: Server) -> None:
    shapes.assert_refused(patched, BAD[name](folder))
    shapes.assert_served(folder, patched, shapes.one_image(folder))


@pytest.mark.parametrize("name", BAD)
def test_refused_in_a_stream(name: str, folder: Path, patched: Server) -> None:
    """The status line is sent before the request is looked at, so the refusal comes as an event."""
    bad = BAD[name](folder)
    answer = shapes.ask_bad(patched.url, bad, stream=True)
    assert len(answer.chunks) == 1, answer.chunks
    shapes.assert_message(bad, answer)


def test_a_good_stream_after_a_refused_one(folder: Path, patched: Server) -> None:
    shapes.ask_bad(patched.url, BAD["a pad missing"](folder), stream=True)
    sent = shapes.one_image(folder)
    answer = client.generate(
        patched.url, sent.prompt, sent.images, max_new_tokens=shapes.NEW_TOKENS, stream=True
    )
    assert len(answer.chunks) > 1
    verdict = shapes.judge(folder, sent, answer)
    assert verdict.exact, verdict


# --- many at a time -----------------------------------------------------------------------------------


def test_good_and_bad_requests_at_the_same_time(folder: Path, patched: Server) -> None:
    bad = [BAD[name](folder) for name in ("a pad missing", "an image missing", "a stray pad", "a video pad")]
    good = []
    for number in range(12):
        image = shapes.PICTURES[number % 4 :][:1]
        request = (rollouts.short if number % 3 else rollouts.expanded)(folder, image)
        if number % 2:
            request = rollouts.drifted(folder, request, "after", seed=number)
        # An end of its own for each, so that one request's answer cannot pass for another's.
        tail = [100 + 7 * number, 400 - number]
        good.append(Sent([*request.ids, *tail], request.images, [*request.expected_ids, *tail]))
    with ThreadPoolExecutor(16) as pool:
        served = [pool.submit(shapes.ask, patched.url, sent) for sent in good]
        refused = [pool.submit(shapes.ask_bad, patched.url, one) for one in bad]
    for one, future in zip(bad, refused, strict=True):
        assert future.result().status == 400
        shapes.assert_message(one, future.result())
    for sent, future in zip(good, served, strict=True):
        verdict = shapes.judge(folder, sent, future.result(), shapes.BATCHED_NOISE)
        assert verdict.exact, verdict


@pytest.mark.parametrize("nothing", [None, []], ids=["null", "empty list"])
def test_a_batch_with_a_row_without_image(nothing: list[str] | None, folder: Path, patched: Server) -> None:
    rows = [
        SHAPES["expanded, drifted between"](folder),
        shapes.text(folder, "<|im_start|>user\nWithout a picture.<|im_end|>\n<|im_start|>assistant\n"),
        SHAPES["history expanded, new turn short"](folder),
    ]
    ids = [row.prompt if isinstance(row.prompt, list) else row.expected_ids for row in rows]
    data = [[client.as_base64(image) for image in row.images] or nothing for row in rows]
    answer = client.generate(
        patched.url, ids, image_data=data, max_new_tokens=shapes.NEW_TOKENS, timeout=shapes.ANSWER_SECONDS
    )
    assert answer.status == 200, answer.body
    assert len(answer.body) == 3
    for row, body in zip(rows, answer.body, strict=True):
        verdict = shapes.judge(folder, row, client.read(200, body), shapes.BATCHED_NOISE)
        assert verdict.exact, verdict


def test_a_batch_with_a_bad_row_is_refused(folder: Path, patched: Server) -> None:
    good, bad = SHAPES["expanded"](folder), BAD["a pad extra"](folder)
    data = [[client.as_base64(image) for image in good.images], bad.image_data]
    answer = client.generate(
        patched.url, [good.prompt, bad.ids], image_data=data, timeout=shapes.ANSWER_SECONDS
    )
    assert answer.status == 400, answer.body
    shapes.assert_message(bad, answer)
    shapes.assert_served(folder, patched, good)


# --- the log ------------------------------------------------------------------------------------------


def test_one_line_a_process_in_the_log(patched: Server, release: str) -> None:
    shapes.assert_announced(patched, release)


def test_stock_says_nothing(stock: Server) -> None:
    assert shapes.announcements(stock) == []
