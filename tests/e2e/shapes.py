"""What the end-to-end tests and the demo ask of a server, and how its answer is judged.

Every expected value comes from ``transformers`` on the caller's own ids.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from deepeyes_patch.errors import REFUSED
from deepeyes_patch.verification import tiny
from tests.lab import client, flags, reference
from tests.lab.client import Answer
from tests.lab.environments import CHECKOUT
from tests.lab.server import Server
from tests.sglang import rollouts
from tests.sglang.rollouts import IMAGE, Request

# Environments of a server: the repairs off and on, whatever the environment of the tests says.
STOCK = {"DEEPEYES_PATCH": None, "RELAX_DEEPEYES_QWEN_VL_PATCH": None}
PATCHED = {**STOCK, "DEEPEYES_PATCH": "1"}

# Of a server in bf16 beside transformers in float32, for a request alone. In the requests of these tests,
# transformers in bf16 is itself off from float32 by up to 0.006, depending on the CPU.
NOISE = 8e-3
# Batches of changing sizes seem to round differently: a step of bf16 logits between 1 and 2 is 0.0078, and
# text without any image is off by as much.
BATCHED_NOISE = 0.01
WRONG = 0.02  # where positions or placements are wrong, log-probs are off by more than this
NEW_TOKENS = 6
CHILD_SECONDS = 300  # a child that imports SGLang, and a server that it may start
ANSWER_SECONDS = 90  # the first answer of a server takes seconds on a busy machine; stock can hang

PICTURES = [rollouts.picture(width, height) for width, height in rollouts.SIZES]


def unseen(count: int, seed: int) -> list[Image.Image]:
    """Pictures that no server has features of yet.

    SGLang keeps features over a flush, and their last bits depend on what was computed beside them.
    """
    return [rollouts.picture(*size, seed=seed) for size in rollouts.SIZES[:count]]


TURNS = [
    f"<|im_start|>user\n{IMAGE}Where is the red cup? Zoom in when you are not sure.<|im_end|>\n"
    "<|im_start|>assistant\n",
    f"<|im_end|>\n<|im_start|>user\nThe crop that you asked for: {IMAGE}<|im_end|>\n<|im_start|>assistant\n",
    f"<|im_end|>\n<|im_start|>user\nAnd a closer one: {IMAGE}Answer now.<|im_end|>\n<|im_start|>assistant\n",
]


@dataclass(frozen=True)
class Sent:
    """One request: a prompt (text or ids) with its images, and the ids that the model must see."""

    prompt: str | list[int]
    images: list[Image.Image]
    expected_ids: list[int]

    @property
    def tokens(self) -> int | None:
        """How many tokens were sent; a text has none yet."""
        return None if isinstance(self.prompt, str) else len(self.prompt)


def text(folder: Path, prompt: str, images: Sequence[Image.Image] = ()) -> Sent:
    return Sent(prompt, list(images), reference.expand(folder, prompt, images).input_ids)


def _ids(request: Request) -> Sent:
    return Sent(request.ids, request.images, request.expected_ids)


def _short(folder: Path) -> Request:
    return rollouts.short(folder, PICTURES[:2])


def _expanded(folder: Path) -> Request:
    return rollouts.expanded(folder, PICTURES[:2])


SHAPES: dict[str, Callable[[Path], Sent]] = {
    "text": lambda f: text(f, rollouts.conversation(2), PICTURES[:2]),
    "short": lambda f: _ids(_short(f)),
    "short, drifted": lambda f: _ids(rollouts.drifted(f, _short(f), "between")),
    "expanded": lambda f: _ids(_expanded(f)),
    "expanded, drifted before": lambda f: _ids(rollouts.drifted(f, _expanded(f), "before")),
    "expanded, drifted between": lambda f: _ids(rollouts.drifted(f, _expanded(f), "between")),
    "expanded, drifted after": lambda f: _ids(rollouts.drifted(f, _expanded(f), "after")),
    "history expanded, new turn short": lambda f: _ids(rollouts.mixed(f, PICTURES[:3], {2})),
}


@dataclass(frozen=True)
class Bad:
    """A request that must be refused: ids, ``image_data``, and what the message must match."""

    ids: list[int]
    image_data: list[str] | None
    message: str


def _bad(change: Callable[[Path, list[int], list[str]], Bad]) -> Callable[[Path], Bad]:
    """From the ids and the two images of a good request."""

    def make(folder: Path) -> Bad:
        return change(folder, _expanded(folder).ids, [client.as_base64(image) for image in PICTURES[:2]])

    return make


def _first_pad(folder: Path, ids: list[int]) -> int:
    return rollouts.spans(folder, ids)[0][0]


def _inserted(ids: list[int], position: int, token: int) -> list[int]:
    return [*ids[:position], token, *ids[position:]]


# 448 x 224 px in patches of 16, merged two by two: 14 x 7 = 98 tokens.
BAD: dict[str, Callable[[Path], Bad]] = {
    "a pad missing": _bad(
        lambda f, ids, data: Bad(
            [token for i, token in enumerate(ids) if i != _first_pad(f, ids)],
            data,
            r"image 0 of 2: input_ids hold 97 image placeholders .* makes 98 ",
        )
    ),
    "a pad extra": _bad(
        lambda f, ids, data: Bad(
            _inserted(ids, _first_pad(f, ids), rollouts.vision(f).image),
            data,
            r"image 0 of 2: input_ids hold 99 image placeholders .* makes 98 ",
        )
    ),
    "an image missing": _bad(lambda f, ids, data: Bad(ids, data[:1], r"hold 2 image span.*1 image")),
    "a stray pad": _bad(
        lambda f, ids, data: Bad(
            [*ids, rollouts.vision(f).image], data, r"an image placeholder .* without vision_start"
        )
    ),
    "pads and no image at all": _bad(
        lambda f, ids, data: Bad(
            ids,
            None,
            rf"hold {ids.count(rollouts.vision(f).image)} image placeholder.* no image came with them",
        )
    ),
    "a video pad": _bad(
        lambda f, ids, data: Bad([*ids, rollouts.vision(f).video], data, r"hold a video placeholder")
    ),
    "a video pad and no media at all": _bad(
        lambda f, ids, data: Bad(
            [5, rollouts.vision(f).video, 5], None, r"hold 1 video placeholder.* no video came with them"
        )
    ),
    "an id beyond the vocabulary": _bad(
        # SGLang would clamp it to the last row of the embedding.
        lambda f, ids, data: Bad([*ids, 10**7], data, r"hold 10000000 at position \d+, and the model has")
    ),
    "ids that SGLang cuts to the context length": _bad(
        lambda f, ids, data: Bad(
            [*ids, *[5] * tiny.CONTEXT], data, r"exceed the context length, and SGLang cut them to"
        )
    ),
    "an image that cannot be decoded": _bad(
        # Our words on releases that would answer HTTP 500, SGLang's own on those that refuse it themselves.
        lambda f, ids, data: Bad(ids, [data[0], "bm90IGFuIGltYWdl"], r"cannot identify image file")
    ),
}


def one_image(folder: Path) -> Sent:
    """A good request that costs little."""
    return _ids(rollouts.drifted(folder, rollouts.expanded(folder, PICTURES[:1]), "after"))


def ask(url: str, sent: Sent, new_tokens: int = NEW_TOKENS) -> Answer | None:
    """Greedy, with log-probs; None if no answer comes in time."""
    try:
        return client.generate(
            url, sent.prompt, sent.images or None, max_new_tokens=new_tokens, timeout=ANSWER_SECONDS
        )
    except TimeoutError:
        return None


def rollout(folder: Path, url: str) -> Iterator[tuple[Sent, Answer | None]]:
    """Three turns of an agent: its answer goes back as the ids it sampled, then the next image comes.

    Where the server gives no answer, that of ``transformers`` stands in, so that the next turn can be asked.
    """
    ids: list[int] = []
    for turn, words in enumerate(TURNS):
        images = PICTURES[: turn + 1]
        ids = [*ids, *reference.expand(folder, words, images[-1:]).input_ids]
        sent = Sent(ids, images, ids)
        answer = ask(url, sent)
        yield sent, answer
        if answer is not None and answer.status == 200:
            ids = [*ids, *answer.output_ids]
        elif turn + 1 < len(TURNS):
            grids, pixels = media(folder, images)
            ids = [*ids, *reference.greedy(folder, ids, grids, pixels, NEW_TOKENS)[0]]


def media(folder: Path, images: Sequence[Image.Image]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Grids and pixels of some images, as ``transformers`` makes them."""
    if not images:
        return None, None
    made = reference.processor(folder).image_processor(images=list(images), return_tensors="pt")
    return made["image_grid_thw"], made["pixel_values"]


@dataclass(frozen=True)
class Verdict:
    """An answer beside ``transformers`` on the caller's ids.

    ``status`` is None if no answer came. ``error`` is the largest difference of a log-prob, over the
    tokens that the server generated; ``shortfall`` how far below the most probable token these ever are.
    """

    status: int | None
    tokens_used: int | None = None
    error: float | None = None
    shortfall: float | None = None
    exact: bool = False


def compare(folder: Path, sent: Sent, answer: Answer) -> tuple[torch.Tensor, torch.Tensor]:
    """For each generated token: how far off its log-prob is, and how far below the most probable it is.

    Both in the eyes of ``transformers``, given the caller's ids and what the server generated before. Where
    the second is 0, this is the very token that ``transformers`` generates greedily.
    """
    grids, pixels = media(folder, sent.images)
    scores, shortfalls = reference.scores(folder, sent.expected_ids, grids, pixels, answer.output_ids)
    return (torch.tensor(answer.logprobs) - scores).abs(), shortfalls


def judge(folder: Path, sent: Sent, answer: Answer | None, noise: float = NOISE) -> Verdict:
    if answer is None or answer.status != 200:
        return Verdict(answer.status if answer else None)
    errors, shortfalls = compare(folder, sent, answer)
    error, shortfall = float(errors.max()), float(shortfalls.max())
    exact = (
        answer.prompt_tokens == len(sent.expected_ids)
        and len(errors) == NEW_TOKENS
        and error < noise
        and shortfall < 2 * noise  # two log-probs, each off by the noise, can change places
    )
    return Verdict(answer.status, answer.prompt_tokens, error, shortfall, exact)


def assert_served(folder: Path, running: Server, sent: Sent) -> None:
    """The server answers, on exactly the expected ids, what ``transformers`` would."""
    answer = ask(running.url, sent)
    assert answer is not None, "no answer in time"
    assert answer.status == 200, answer.body
    assert answer.prompt_tokens == len(sent.expected_ids)
    verdict = judge(folder, sent, answer)
    assert verdict.exact, verdict


def ask_bad(url: str, bad: Bad, **fields: Any) -> Answer:
    return client.generate(url, bad.ids, image_data=bad.image_data, timeout=ANSWER_SECONDS, **fields)


def assert_refused(running: Server, bad: Bad) -> None:
    """The server answers HTTP 400, and says why."""
    answer = ask_bad(running.url, bad)
    assert answer.status == 400, answer.body
    assert_message(bad, answer)


def assert_message(bad: Bad, answer: Answer) -> None:
    message = answer.body["error"]["message"]
    assert re.search(bad.message, message), message


def run_on(
    path: Path, module: str, *arguments: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m MODULE`` with the repairs on and ``path``, an altered SGLang, first on its path."""
    env = {**os.environ, **PATCHED, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [python, "-m", module, *arguments],
        env={name: value for name, value in env.items() if value is not None},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
    )


def announcements(running: Server) -> list[str]:
    """What we put into the log.

    Paths of the lab hold our name too, followed by no blank. Where SGLang logs a traceback, its frames and
    the name of the exception hold it.
    """
    return [
        line
        for line in running.log_text().splitlines()
        if re.search(r"deepeyes-patch |deepeyes_patch", line)
        and not line.startswith(('  File "', "deepeyes_patch.errors."))
        and REFUSED not in line
    ]


def assert_announced(running: Server, release: str) -> None:
    """The log says what was patched, once for each process that constructs the processor or has our rope."""
    lines = announcements(running)
    native = flags.interleaves()
    mrope = "native" if native else r"patched \(MRotaryEmbedding\)"
    head = rf"deepeyes-patch \S+, SGLang {re.escape(release)}, pid (\d+): "
    pattern = rf"{head}processor: (.+); mrope: {mrope}; video: off; sampling: off; deepstack: off$"
    states = {int(match[1]): match[2] for line in lines if (match := re.search(pattern, line))}
    assert len(states) == len(lines), lines
    assert running.pid in states, "the tokenizer manager lives in the first process"
    assert all(os.getsid(pid) == running.pid for pid in states), "a pid of this server, which leads a session"
    patched = {pid for pid, state in states.items() if re.fullmatch(r"patched \(Qwen\w*VL\w+\)", state)}
    if native:
        assert patched == set(states), lines
    else:
        # Releases that need our rope construct the processor in the first process alone.
        assert patched == {running.pid}, lines
        assert len(states) > 1, "no model process has said that its rope is ours"
