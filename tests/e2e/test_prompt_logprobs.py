"""Log-probs of the prompt with images: ids and values at every position, as ``transformers`` has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e import scoring, shapes
from tests.e2e.shapes import SHAPES, Sent
from tests.lab import client, installed, reference, server
from tests.lab.server import Server
from tests.sglang import rollouts

# One chunk ends inside of an image, another one in text.
CHUNKED = ["--chunked-prefill-size", "64"]


@pytest.fixture(scope="module")
def scorer(on_a_cpu: dict[str, str], request: pytest.FixtureRequest) -> Iterator[Server]:
    yield from scoring.serve("patched", shapes.PATCHED, on_a_cpu, request)


def ask(running: Server, sent: Sent, start: int = 0) -> client.Answer:
    return client.generate(
        running.url, sent.prompt, sent.images or None, max_new_tokens=2, logprob_start_len=start
    )


def expected(folder: Path, sent: Sent) -> torch.Tensor:
    """float32 [T - 1]: the log-prob of each id but the first, given those before it."""
    ids = sent.expected_ids
    return reference.logprobs(folder, ids[:1], *shapes.media(folder, sent.images), ids[1:])


def assert_scored(folder: Path, sent: Sent, rows: Sequence[Sequence[Any]], start: int = 0) -> None:
    """``rows``: (log-prob, id, text) for the ids from ``start`` on; the first has no log-prob."""
    assert [row[1] for row in rows] == sent.expected_ids[start:]
    assert rows[0][0] is None
    off = torch.tensor([row[0] for row in rows[1:]]) - expected(folder, sent)[start:]
    assert bool((off.abs() < shapes.BATCHED_NOISE).all()), off.abs().max()


def scored(answer: client.Answer) -> list[Any]:
    assert answer.status == 200, answer.body
    rows: list[Any] = answer.body["meta_info"]["input_token_logprobs"]
    return rows


@pytest.mark.parametrize("name", SHAPES)
def test_patched(name: str, folder: Path, scorer: Server) -> None:
    sent = SHAPES[name](folder)
    assert_scored(folder, sent, scored(ask(scorer, sent)))


def test_from_inside_an_image_on(folder: Path, scorer: Server) -> None:
    sent = SHAPES["expanded, drifted between"](folder)
    (begin, end), *_ = rollouts.spans(folder, sent.expected_ids)
    for start in (begin - 1, (begin + end) // 2, end, len(sent.expected_ids) - 1):
        assert_scored(folder, sent, scored(ask(scorer, sent, start)), start)


def test_of_many_requests_at_the_same_time(folder: Path, scorer: Server) -> None:
    """Those that ask, those that ask for less, and those without images share the batches."""
    words = [f"<|im_start|>user\nWithout an image, number {i}.<|im_end|>\n" for i in range(4)]
    asked = [(shapes.text(folder, text), 0) for text in words]
    asked += [(SHAPES[name](folder), start) for name in SHAPES if name != "text" for start in (0, 30, -1)]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda one: ask(scorer, *one), asked))
    for (sent, start), answer in zip(asked, answers, strict=True):
        assert answer.prompt_tokens == len(sent.expected_ids)
        if start >= 0:
            assert_scored(folder, sent, scored(answer), start)


def test_in_chunks(folder: Path, on_a_cpu: dict[str, str]) -> None:
    with server.serve(folder, env={**shapes.PATCHED, **on_a_cpu}, args=CHUNKED) as running:
        for name in ("expanded, drifted between", "history expanded, new turn short"):
            sent = SHAPES[name](folder)
            assert_scored(folder, sent, scored(ask(running, sent)))


def test_stock(folder: Path, on_a_cpu: dict[str, str]) -> None:
    """At an image, the id is 0 and the log-prob another id's; or the server ends. The text is right."""
    sent = SHAPES["text"](folder)
    with server.serve(folder, env={**shapes.STOCK, **on_a_cpu}) as running:
        if not clamps():
            with pytest.raises(ConnectionError):
                ask(running, sent)
            assert "IndexError" in running.log_text()
            return
        rows = scored(ask(running, sent))
    assert len(rows) == len(sent.expected_ids)
    off = torch.tensor([0.0, *(row[0] for row in rows[1:])])
    off[1:] -= expected(folder, sent)
    pad = rollouts.vision(folder).image
    visual = torch.tensor([token == pad for token in sent.expected_ids])
    print(f"off by up to {off[visual].abs().max():.3f} at images, {off[~visual].abs().max():.4f} elsewhere")
    assert {row[1] for row, is_visual in zip(rows, visual, strict=True) if is_visual} == {0}
    assert off[visual].abs().max() > shapes.WRONG
    assert off[~visual].abs().max() < shapes.NOISE


def clamps() -> bool:
    """Whether the numbers that stand for images are brought into the vocabulary before they are looked up."""
    (source,) = installed.sources("sglang.srt.managers.schedule_batch")
    return "extend_input_logprob_token_ids.clamp_(" in source.read_text()
