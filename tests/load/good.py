"""A pool of good requests of every kind, and what ``transformers`` says about an answer to each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.e2e import shapes
from tests.e2e.shapes import Sent
from tests.lab import client, environments, models, reference
from tests.lab.client import Answer
from tests.sglang import rollouts

POOL = 40
LONGEST = 4  # new tokens
SIZES = ((256, 256), (448, 224), (320, 288), (224, 672))


@dataclass(frozen=True)
class Good:
    """``rows`` are what the answers are judged by: one, or as many as a batch has."""

    kind: str
    body: dict[str, Any]
    rows: list[Sent]


def pool(folder: Path) -> list[Good]:
    """`POOL` requests, each with pictures and last ids of its own: no answer can pass for another's."""
    return [_good(folder, number) for number in range(POOL)]


def _good(folder: Path, number: int) -> Good:
    makers = (_expanded, _short, _drifted, _mixed, _text, _two_drifted, _ids_alone, _text_with_image)
    kind = makers[number % len(makers)]
    row = kind(folder, number)
    name = kind.__name__.strip("_").replace("_", " ")
    new_tokens = 1 + number % LONGEST
    if number % 5 == 4:
        others = [_expanded(folder, 100 + number), _two_drifted(folder, 200 + number)]
        rows = [row if isinstance(row.prompt, list) else _short(folder, number), *others]
        return Good(f"batch of {len(rows)}", batch(rows, new_tokens), rows)
    stream = number % 4 == 2
    return Good(f"{name}, stream" if stream else name, single(row, new_tokens, stream), [row])


def _pictures(number: int, count: int) -> list[Any]:
    return [
        rollouts.picture(*SIZES[(number + index) % len(SIZES)], seed=10 * number + index)
        for index in range(count)
    ]


def _own(request: rollouts.Request, number: int) -> Sent:
    tail = [100 + number, 400 - number]
    return Sent([*request.ids, *tail], request.images, [*request.expected_ids, *tail])


def _expanded(folder: Path, number: int) -> Sent:
    return _own(rollouts.expanded(folder, _pictures(number, 1)), number)


def _short(folder: Path, number: int) -> Sent:
    return _own(rollouts.short(folder, _pictures(number, 1)), number)


def _drifted(folder: Path, number: int) -> Sent:
    request = rollouts.expanded(folder, _pictures(number, 1))
    return _own(rollouts.drifted(folder, request, "after", seed=number), number)


def _mixed(folder: Path, number: int) -> Sent:
    return _own(rollouts.mixed(folder, _pictures(number, 3), {number % 3}), number)


def _two_drifted(folder: Path, number: int) -> Sent:
    request = rollouts.expanded(folder, _pictures(number, 2))
    return _own(rollouts.drifted(folder, request, "between", seed=number), number)


def _ids_alone(folder: Path, number: int) -> Sent:
    ids = rollouts.tokenize(folder, rollouts.conversation(0)) + list(range(40 + number, 90 + number))
    return Sent(ids, [], ids)


def _text(folder: Path, number: int) -> Sent:
    return shapes.text(folder, f"The request number {number} is without a picture.")


def _text_with_image(folder: Path, number: int) -> Sent:
    return shapes.text(folder, f"{number}: {rollouts.conversation(1)}", _pictures(number, 1))


# --- as JSON ------------------------------------------------------------------------------------------

# By identity: thousands of requests are made of few pictures. Each is kept, so that no other gets its id.
_encoded: dict[int, tuple[Any, str]] = {}


def encoded(images: Sequence[Any]) -> list[str]:
    """`client.as_base64` of each, made once."""
    for image in images:
        if id(image) not in _encoded:
            _encoded[id(image)] = (image, client.as_base64(image))
    return [_encoded[id(image)][1] for image in images]


def single(row: Sent, new_tokens: int, stream: bool = False) -> dict[str, Any]:
    prompt = "text" if isinstance(row.prompt, str) else "input_ids"
    body = {prompt: row.prompt, "stream": stream, **_fields(new_tokens)}
    if row.images:
        body["image_data"] = encoded(row.images)
    return body


def batch(rows: Sequence[Sent], new_tokens: int) -> dict[str, Any]:
    return {
        "input_ids": [row.prompt for row in rows],
        "image_data": [encoded(row.images) for row in rows],
        **_fields(new_tokens),
    }


def _fields(new_tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    return {"sampling_params": sampling, "return_logprob": True}


# --- what transformers says ---------------------------------------------------------------------------


class Reference:
    """`reference.scores` of what servers have answered, kept on disk: most answers are the same ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        versions = f"{models.recipe()}-float32-{metadata.version('transformers')}-{metadata.version('torch')}"
        self.path = environments.cache() / "references" / f"{versions}.json"
        self.known = json.loads(self.path.read_text()) if self.path.exists() else {}

    def problem(self, row: Sent, answer: Answer, new_tokens: int) -> str | None:
        """How an answer differs from what ``transformers`` generates greedily on the ids that are due."""
        if answer.status != 200 or "meta_info" not in answer.body:
            return f"HTTP {answer.status}: {answer.body!s:.300}"
        if answer.prompt_tokens != len(row.expected_ids):
            return f"{answer.prompt_tokens} tokens used, {len(row.expected_ids)} due"
        if len(answer.output_ids) != new_tokens or len(answer.logprobs) != new_tokens:
            return f"{len(answer.output_ids)} tokens generated, {new_tokens} due"
        scores, shortfalls = self._scores(row, answer.output_ids)
        error = max(abs(s - found) for s, found in zip(scores, answer.logprobs, strict=True))
        # Two log-probs, each off by the noise, can change places.
        if error < shapes.BATCHED_NOISE and max(shortfalls) < 2 * shapes.BATCHED_NOISE:
            return None
        return f"log-probs off by {error:.4f}, tokens below the best by {max(shortfalls):.4f}"

    def _scores(self, row: Sent, output_ids: list[int]) -> tuple[list[float], list[float]]:
        pictures = [hashlib.sha256(image.tobytes()).hexdigest() for image in row.images]
        key = hashlib.sha256(json.dumps([row.expected_ids, pictures, output_ids]).encode()).hexdigest()
        if key not in self.known:
            media = shapes.media(self.folder, row.images)
            found = reference.scores(self.folder, row.expected_ids, *media, output_ids)
            self.known[key] = [values.tolist() for values in found]
        scores, shortfalls = self.known[key]
        return scores, shortfalls

    def keep(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = self.path.with_suffix(".part")
        whole.write_text(json.dumps(self.known))
        whole.replace(self.path)
