"""A short visual episode on a running server, beside ``transformers``: ids used, and log-probs.

An episode of three turns has a new image in each. Every turn is sent twice: with its images expanded, as a
trainer has them, and with one placeholder for each image, which stock SGLang of many releases takes. The
history holds what was sampled, spelled as no tokenizer spells it. An episode of the same turns without images
comes first: its log-probs show how far server and ``transformers`` are apart where nothing can go wrong.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import math
import statistics
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from PIL.Image import Image

    from deepeyes_patch.verification.trainer import Trainer

QUESTIONS = (
    "What is in this picture? Describe it in one short sentence.",
    "Here is the next one. What has changed, and what is the largest shape?",
    "And here is the last one. Which of the three has the most green in it?",
)
SAMPLED = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "ignore_eos": True}
# A server computes in bfloat16, and is not asked to be nearer than this.
LEAST_NOISE = 0.005
# Text alone is not further off than this on average, unless the weights or the sampling differ.
MOST_NOISE = 0.1

Form = Literal["text only", "expanded", "one placeholder"]


class Unreachable(Exception):
    """The server did not answer at all, or is not SGLang's."""


@dataclass(frozen=True)
class Row:
    """One request of the episode.

    ``sent``: how many ids the request holds. ``expected``: how many the model must see, with all images
    expanded. ``used``: how many the server says it used. ``errors``: |log-prob of the server - log-prob of
    transformers| of each sampled id. ``failure``: the error in place of an answer, and ``message`` its words.
    """

    turn: int
    form: Form
    sent: int
    expected: int
    used: int | None = None
    errors: tuple[float, ...] = ()
    failure: str | None = None
    message: str | None = None

    @property
    def largest(self) -> float | None:
        return max(self.errors, default=None)

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.errors) if self.errors else None


@dataclass(frozen=True)
class Server:
    """A server's address, and the time limit for an answer."""

    url: str
    seconds: float

    def get(self, path: str) -> Any:
        """The JSON at a path; ``None`` if there is none."""
        status, body = self._ask(urllib.request.Request(f"{self.url}{path}"))
        return body if status == 200 else None

    def generate(self, request: dict[str, Any]) -> tuple[int, Any]:
        """The status and the JSON, or the text, of an answer of ``/generate``."""
        message = urllib.request.Request(
            f"{self.url}/generate",
            data=json.dumps(request).encode(),
            headers={"Content-Type": "application/json"},
        )
        return self._ask(message)

    def _ask(self, message: urllib.request.Request) -> tuple[int, Any]:
        # A proxy of the environment does not lead to this machine.
        is_here = urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")
        handlers = [urllib.request.ProxyHandler({})] if is_here else []
        try:
            with urllib.request.build_opener(*handlers).open(message, timeout=self.seconds) as answer:
                return answer.status, _parsed(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _parsed(error.read())
        except TimeoutError:
            return 0, f"no answer within {self.seconds:.0f} s"
        except (OSError, http.client.HTTPException) as error:  # also URLError; or it ended meanwhile
            raise Unreachable(f"{self.url} cannot be reached: {getattr(error, 'reason', error)}") from error


def play(trainer: Trainer, server: Server, images: Sequence[Image], new_tokens: int) -> Iterator[Row]:
    """Each request of the episode without images, then of the one with an image in each turn."""
    yield from _play(trainer, server, [None] * len(images), new_tokens)
    yield from _play(trainer, server, images, new_tokens)


@dataclass(frozen=True)
class Limits:
    """What log-probs may be off: three times what they are where no image is, in the largest and the mean."""

    largest: float
    mean: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Limits:
        # Where text alone is far off, it does not say what noise is.
        usual = [
            row.errors
            for row in rows
            if row.form == "text only" and row.mean is not None and row.mean <= MOST_NOISE
        ]
        errors = [error for row in usual for error in row] or [0.0]
        return cls(
            largest=max(LEAST_NOISE, 3 * max(errors)), mean=max(LEAST_NOISE / 3, 3 * statistics.fmean(errors))
        )

    def verdict(self, row: Row) -> str:
        """``exact``, or what is wrong."""
        if row.failure is not None:
            return row.failure
        if row.used != row.expected:
            return "other ids"
        mean = MOST_NOISE if row.form == "text only" else self.mean
        near = row.mean is not None and row.mean <= mean and max(row.errors) <= self.largest
        return "exact" if near else "other log-probs"


def drawn(count: int) -> list[Image]:
    """Pictures to ask about: shapes on a gradient, of several sizes."""
    from PIL import Image, ImageDraw

    sizes = ((448, 336), (392, 560), (672, 448), (560, 560))
    pictures = []
    for number in range(count):
        width, height = sizes[number % len(sizes)]
        picture = Image.linear_gradient("L").resize((width, height)).convert("RGB")
        draw = ImageDraw.Draw(picture)
        for shape in range(number + 2):
            x, y = (97 * shape + 31 * number) % (width - 160), (61 * shape + 47 * number) % (height - 160)
            colour = ((90 * shape) % 256, (150 + 60 * number) % 256, (40 * shape + 80 * number) % 256)
            (draw.rectangle if shape % 2 else draw.ellipse)((x, y, x + 150, y + 120), fill=colour)
        pictures.append(picture)
    return pictures


def _play(trainer: Trainer, server: Server, images: Sequence[Image | None], new_tokens: int) -> Iterator[Row]:
    ids: list[int] = []
    answer: list[int] = []
    seen: list[Image] = []
    for turn, image in enumerate(images, 1):
        new = [] if image is None else [image]
        ids = [*ids, *answer, *trainer.turn(QUESTIONS[(turn - 1) % len(QUESTIONS)], new, after=answer)]
        seen += new
        answer = []
        forms: dict[Form, list[int]] = {"text only": ids}
        if image is not None:
            forms = {"expanded": ids, "one placeholder": trainer.short(ids)}
        for form, sent in forms.items():
            row, sampled = _ask(
                trainer, server, Row(turn, form, len(sent), len(ids)), sent, ids, seen, new_tokens
            )
            yield row
            answer = answer or sampled
        # A server that fails has sampled nothing; the next turn is asked all the same.
        answer = trainer.respell(answer or trainer.sample(ids, seen, new_tokens, seed=turn))


def _ask(
    trainer: Trainer,
    server: Server,
    row: Row,
    sent: Sequence[int],
    ids: Sequence[int],
    images: Sequence[Image],
    new_tokens: int,
) -> tuple[Row, list[int]]:
    """The row with what the server answered, and the ids that it sampled."""
    request = {
        "input_ids": list(sent),
        "image_data": [_data_url(image) for image in images] or None,
        "sampling_params": {
            **SAMPLED,
            "max_new_tokens": new_tokens,
            "logit_bias": {str(token): -100.0 for token in trainer.forbidden},
        },
        "return_logprob": True,
    }
    status, body = server.generate(request)
    if status != 200:
        failure = f"HTTP {status}" if status else "no answer"
        return replace(row, failure=failure, message=_message(body)), []
    used, pairs = _read(server, body)
    sampled = [token for _, token in pairs]
    if not all(trainer.can_sample(token) for token in sampled):
        return replace(
            row, used=used, errors=(math.inf,)
        ), []  # with such an id, nothing further can be asked
    scores = trainer.scores(ids, images, sampled)
    errors = tuple(abs(logprob - score) for (logprob, _), score in zip(pairs, scores, strict=True))
    return replace(row, used=used, errors=errors), sampled


def _read(server: Server, body: Any) -> tuple[int, list[tuple[float, int]]]:
    """How many ids the server used, and log-prob and id of each token that it sampled."""
    try:
        meta = body["meta_info"]
        pairs = [(float(logprob), int(token)) for logprob, token, *_ in meta["output_token_logprobs"]]
        if pairs:
            return int(meta["prompt_tokens"]), pairs
    except (KeyError, TypeError, ValueError):
        pass
    raise Unreachable(f"{server.url}/generate does not answer as SGLang does: {str(body)[:200]}")


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _data_url(image: Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")  # lossless: the server sees the pixels that transformers sees
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")
