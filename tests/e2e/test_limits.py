"""A patched server with limits of its own: of pixels, with the slow image processor, and of the context."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.e2e import shapes
from tests.e2e.shapes import NEW_TOKENS, NOISE
from tests.lab import client, reference, server
from tests.lab.client import Answer
from tests.lab.reference import Expanded
from tests.lab.server import Server
from tests.sglang import rollouts
from tests.sglang.rollouts import Request

PIXELS = {"min_pixels": 65536, "max_pixels": 131072}
CONTEXT = 2048
# SGLang keeps room for one id that is not used and for five that are generated, and serves what is shorter
# than the rest (``max_req_input_len`` in tp_worker.py). The longest prompt gets five.
LONGEST, ITS_NEW_TOKENS = CONTEXT - 7, 5

IMAGES = [rollouts.picture(448, 448), rollouts.picture(672, 448)]


@pytest.fixture(scope="module")
def limited(folder: Path) -> Iterator[Server]:
    args = [
        *("--mm-process-config", json.dumps({"image": PIXELS})),
        "--disable-fast-image-processor",
        *("--context-length", str(CONTEXT)),
        "--allow-auto-truncate",
    ]
    with server.serve(folder, env=shapes.PATCHED, args=args) as running:
        yield running


@cache
def slow(folder: Path) -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(folder, use_fast=False)


def made(folder: Path, images: Sequence[Image.Image], pixels: Mapping[str, int] = PIXELS) -> Expanded:
    """What ``transformers`` makes of a conversation about the images, within these bounds."""
    text = rollouts.conversation(len(images))
    done = slow(folder)(text=[text], images=list(images), images_kwargs=dict(pixels), return_tensors="pt")
    return Expanded(done["input_ids"][0].tolist(), done["image_grid_thw"], done["pixel_values"])


def ask(running: Server, ids: list[int], images: Sequence[Image.Image]) -> Answer:
    return client.generate(running.url, ids, images, max_new_tokens=NEW_TOKENS, timeout=shapes.ANSWER_SECONDS)


def assert_exact(
    folder: Path, answer: Answer, ids: Sequence[int], media: Expanded, new_tokens: int = NEW_TOKENS
) -> None:
    assert answer.status == 200, answer.body
    assert answer.prompt_tokens == len(ids)
    assert len(answer.output_ids) == new_tokens
    scores, shortfalls = reference.scores(folder, ids, media.grids, media.pixel_values, answer.output_ids)
    assert float((torch.tensor(answer.logprobs) - scores).abs().max()) < NOISE
    assert float(shortfalls.max()) < 2 * NOISE


# --- pixels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["expanded", "drifted", "short"])
def test_ids_expanded_within_the_servers_bounds(
    shape: str, folder: Path, limited: Server, stock: Server
) -> None:
    media = made(folder, IMAGES)
    assert len(media.input_ids) < len(made(folder, IMAGES, {}).input_ids), "the bounds change nothing"
    request = Request(media.input_ids, IMAGES, media.input_ids)
    if shape == "drifted":
        request = rollouts.drifted(folder, request, "between")
    elif shape == "short":
        ids = rollouts.tokenize(folder, rollouts.conversation(len(IMAGES)))
        request = Request(ids, IMAGES, media.input_ids)
    assert_exact(folder, ask(limited, request.ids, IMAGES), request.expected_ids, media)
    if shape != "short":
        assert ask(stock, request.ids, IMAGES).status == 500


def test_ids_expanded_within_other_bounds_are_refused(folder: Path, limited: Server) -> None:
    """448 x 448 px: 14 x 14 = 196 tokens as they are, 11 x 11 = 121 within the server's bounds."""
    answer = ask(limited, made(folder, IMAGES, {}).input_ids, IMAGES)
    shapes.assert_message(
        shapes.Bad(
            [],
            None,
            r"image 0 of 2: input_ids hold 196 image placeholders .* makes 121 "
            r".*min_pixels 65536, max_pixels 131072",
        ),
        answer,
    )
    assert answer.status == 400


# --- the context ------------------------------------------------------------------------------------------


def filled(folder: Path, length: int) -> tuple[list[int], Expanded]:
    """A prompt of that many ids, which ends with a turn about an image."""
    media = made(folder, IMAGES[:1])
    filler = [100 + i % 250 for i in range(length - len(media.input_ids))]
    return [*filler, *media.input_ids], media


def test_the_longest_prompt(folder: Path, limited: Server, stock: Server) -> None:
    ids, media = filled(folder, LONGEST)
    assert_exact(folder, ask(limited, ids, IMAGES[:1]), ids, media, ITS_NEW_TOKENS)
    assert ask(stock, ids, IMAGES[:1]).status == 500


@pytest.mark.parametrize(
    ("length", "message"),
    [
        # SGLang's own words, for all that fits the context and leaves no room for an answer
        (LONGEST + 1, r"too long after expanding multimodal tokens"),
        (CONTEXT - 1, r"too long after expanding multimodal tokens"),
        (CONTEXT, r"too long after expanding multimodal tokens"),
        # and ours, for what SGLang would cut
        (CONTEXT + 1, rf"the {CONTEXT + 1} input_ids .* exceed the context length.* cut them to {CONTEXT};"),
        (2 * CONTEXT, rf"the {2 * CONTEXT} input_ids .* exceed the context length"),
    ],
)
def test_longer_prompts_are_refused(length: int, message: str, folder: Path, limited: Server) -> None:
    ids, _ = filled(folder, length)
    answer = ask(limited, ids, IMAGES[:1])
    assert answer.status == 400, answer.body
    shapes.assert_message(shapes.Bad([], None, message), answer)
