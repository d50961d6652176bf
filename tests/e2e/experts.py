"""Episodes for a trainer that replays the router: what a server returns, beside ``transformers``.

A mixture-of-experts layer has a router, which picks a few experts for each token. A server with
``--enable-return-routed-experts`` returns its picks, and such a trainer computes with those. So it needs one
row for each token that went through the model: prompt and answer without the last token.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image

from tests.e2e import shapes
from tests.lab import client, moe, reference
from tests.lab.client import Answer
from tests.sglang import rollouts
from tests.sglang.rollouts import IMAGE, Request

TURNS = (
    f"<|im_start|>user\n{IMAGE}Where is the red cup? Zoom in when you are not sure.<|im_end|>\n"
    "<|im_start|>assistant\n",
    f"<|im_end|>\n<|im_start|>user\nThe crop that you asked for: {IMAGE}Look again.<|im_end|>\n"
    "<|im_start|>assistant\n",
    "<|im_end|>\n<|im_start|>user\nThere is nothing more to see. Answer now.<|im_end|>\n"
    "<|im_start|>assistant\n",
)
NEW_TOKENS = 8
# Servers and `transformers` compute in float32, and differ in the last bits. Where the logits of two experts
# are closer than this, either may be picked.
TIE = 1e-4


@dataclass(frozen=True)
class Asked:
    """One turn: the ids that are sent, all images so far, and the ids that the model must see."""

    ids: list[int]
    images: list[Image.Image]
    expected_ids: list[int]


def _as_expanded(folder: Path, ids: list[int]) -> list[int]:
    return ids


def _as_short(folder: Path, ids: list[int]) -> list[int]:
    """One placeholder for each image."""
    pad = rollouts.vision(folder).image
    return [token for i, token in enumerate(ids) if not i or not ids[i - 1] == token == pad]


def _canonical(folder: Path, new: Request) -> list[int]:
    return new.ids


def _drifted(folder: Path, new: Request) -> list[int]:
    """Some tokens split: more tokens than the tokenizer makes of the text."""
    return rollouts.drifted(folder, new, "after").ids if new.images else new.ids


def _regrouped(folder: Path, new: Request) -> list[int]:
    """Some pairs of tokens cut elsewhere: other tokens than the tokenizer makes of the text, and as many."""
    vocabulary = reference.processor(folder).tokenizer.get_vocab()
    pieces = {i: piece for piece, i in vocabulary.items()}
    ids, place = list(new.ids), 0
    while place + 1 < len(ids):
        if other := _cut_elsewhere(vocabulary, pieces[ids[place]], pieces[ids[place + 1]]):
            ids[place : place + 2] = other
            place += 1
        place += 1
    assert ids != new.ids
    return ids


def _cut_elsewhere(vocabulary: dict[str, int], left: str, right: str) -> tuple[int, int] | None:
    whole = left + right
    if "<|" in whole:  # a special token stays whole
        return None
    cuts = (cut for cut in range(1, len(whole)) if cut != len(left))
    found = ((vocabulary.get(whole[:cut]), vocabulary.get(whole[cut:])) for cut in cuts)
    return next(((a, b) for a, b in found if a is not None and b is not None), None)


# How the images are sent, and how the text of each turn is tokenized. Sampled tokens can drift as well.
SPELLINGS: dict[str, tuple[Callable[[Path, list[int]], list[int]], Callable[[Path, Request], list[int]]]] = {
    "expanded": (_as_expanded, _canonical),
    "expanded, drifted": (_as_expanded, _drifted),
    "short": (_as_short, _canonical),
    "short, drifted": (_as_short, _drifted),
    "short, regrouped": (_as_short, _regrouped),
}


def episode(folder: Path, url: str, spelling: str) -> Iterator[tuple[Asked, Answer]]:
    """Three turns at temperature 1; ends with a turn that fails."""
    sent_as, tokenized = SPELLINGS[spelling]
    ids: list[int] = []
    images: list[Image.Image] = []
    for words in TURNS:
        new_images = shapes.PICTURES[len(images) : len(images) + words.count(IMAGE)]
        images = [*images, *new_images]
        ids = [*ids, *tokenized(folder, rollouts.expanded(folder, new_images, words))]
        asked = Asked(sent_as(folder, ids), images, ids)
        answer = ask(folder, url, asked)
        yield asked, answer
        if answer.status != 200:
            return
        ids = [*ids, *answer.output_ids]


def ask(folder: Path, url: str, asked: Asked, **fields: Any) -> Answer:
    """At temperature 1. No markers of images are sampled: no server could be sent them back."""
    markers = rollouts.vision(folder)
    never = {str(token): -100.0 for token in (markers.start, markers.image, markers.video)}
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "logit_bias": never}
    return client.generate(
        url,
        asked.ids,
        asked.images,
        max_new_tokens=NEW_TOKENS,
        sampling=sampling,
        timeout=shapes.ANSWER_SECONDS,
        return_routed_experts=True,
        **fields,
    )


@dataclass(frozen=True)
class Verdict:
    """The experts of an answer beside those of ``transformers`` on the ids that the model must see.

    ``rows`` and ``due``: how many rows came, and how many a trainer needs. Of all picks, one for each row and
    layer: ``wrong`` are other experts; ``tied`` are other experts that are as good as those of
    ``transformers``, up to `TIE`.
    """

    rows: int
    due: int
    wrong: int | None = None
    tied: int | None = None

    @property
    def right(self) -> bool:
        return self.rows == self.due and self.wrong == 0


def due(asked: Asked, answer: Answer) -> int:
    """How many rows a trainer needs: the last token never went through the model."""
    return len(asked.expected_ids) + len(answer.output_ids) - 1


def judge(folder: Path, asked: Asked, answer: Answer, start: int = 0) -> Verdict:
    """``start``: the first row that was asked for."""
    found = decoded(answer)
    needed = due(asked, answer) - start
    if len(found) != needed:
        return Verdict(len(found), needed)
    logits, picks = routing(folder, asked, answer.output_ids)
    logits, picks = logits[start:], picks[start:]
    assert picks.shape == found.shape
    same = (found.sort(dim=-1).values == picks.sort(dim=-1).values).all(dim=-1)
    distinct = (found.sort(dim=-1).values.diff(dim=-1) > 0).all(dim=-1)
    last = logits.gather(-1, picks).min(dim=-1).values
    as_good = distinct & (logits.gather(-1, found) >= last[..., None] - TIE).all(dim=-1)
    return Verdict(len(found), needed, int((~same & ~as_good).sum()), int((~same & as_good).sum()))


def decoded(answer: Answer) -> torch.Tensor:
    """What came back, int64 [rows, layers, picked]: base64 of int32, row after row."""
    raw = base64.b64decode(answer.body["meta_info"]["routed_experts"])
    flat = torch.from_numpy(numpy.frombuffer(raw, dtype=numpy.int32).astype(numpy.int64))
    return flat.reshape(-1, moe.LAYERS, moe.PICKED)


def routing(folder: Path, asked: Asked, sampled: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the routers of ``transformers`` say of all tokens but the last.

    Their logits, float32 [T - 1, layers, experts], and their picks, int64 [T - 1, layers, picked].
    """
    layers = reference.model(folder).model.language_model.layers
    heard: list[tuple[torch.Tensor, torch.Tensor]] = []

    def listen(router: Any, inputs: Any, output: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
        logits, _, picks = output
        heard.append((logits[:-1], picks[:-1]))

    hooks = [layer.mlp.gate.register_forward_hook(listen) for layer in layers]
    try:
        grids, pixels = shapes.media(folder, asked.images)
        reference.logprobs(folder, asked.expected_ids, grids, pixels, sampled)
    finally:
        for hook in hooks:
            hook.remove()
    assert len(heard) == len(layers) == moe.LAYERS
    logits, picks = (torch.stack(parts, dim=1) for parts in zip(*heard, strict=True))
    return logits, picks
