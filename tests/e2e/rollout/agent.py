"""The agent: several turns on an SGLang server, with the exact ids of everything it saw and said.

The rule that the whole package is about: what the trainer will see is a list of ids that only grows. Ids of a
prompt and of a tool's result come from the HF processor, with every image expanded; ids of an answer are
those that the server sampled. Nothing is decoded and tokenized again.
"""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image

from tests.e2e.rollout import environment
from tests.e2e.rollout.environment import Action, Task

PATIENCE = 120  # seconds
# Spelled out, because what is missing may come from the server's own defaults. SGLang divides by the
# temperature before it takes log-probs (unless SGLANG_RETURN_ORIGINAL_LOGPROB is set, on 0.5.3
# RETURN_ORIGINAL_LOGPROB), and samples from what top-p and top-k leave. At temperature 1 and without
# those, the log-probs are the model's own and those of the distribution that was sampled.
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
ANSWER_TOKENS = 8

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
PROMPT = (
    f"<|im_start|>user\n{IMAGE}{{question}} Name a box to zoom into, or the box that answers.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
OBSERVATION = f"\n<|im_start|>user\n{IMAGE}This is what you zoomed into.<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"


class Refused(RuntimeError):
    """The server answered with an HTTP error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


@dataclass(frozen=True)
class Generated:
    """An answer: its ids and their log-probs [N], and the length of the prompt that the model saw."""

    ids: list[int]
    logprobs: list[float]
    prompt_tokens: int


class Engine:
    """An SGLang server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def generate(self, ids: Sequence[int], images: Sequence[Image], sampling: dict[str, Any]) -> Generated:
        body = self._post(
            "generate",
            {
                "input_ids": list(ids),
                "image_data": [_data_url(image) for image in images],
                "sampling_params": sampling,
                "return_logprob": True,
            },
        )
        meta = body["meta_info"]
        # Not `output_ids`: with log-probs, SGLang 0.5.3 begins that list with a few ids of the prompt.
        scored = meta["output_token_logprobs"]
        assert len(scored) == meta["completion_tokens"], "one log-prob for each token"
        return Generated(
            ids=[int(token) for _, token, *_ in scored],
            logprobs=[float(score) for score, *_ in scored],
            prompt_tokens=int(meta["prompt_tokens"]),
        )

    def load(self, checkpoint: Path) -> None:
        """Take new weights; cached keys and values of the old ones are dropped."""
        body = self._post("update_weights_from_disk", {"model_path": str(checkpoint)})
        assert body["success"], body["message"]

    def _post(self, path: str, content: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self._url}/{path}", json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, error.read().decode(errors="replace")) from None


@dataclass(frozen=True)
class Turn:
    """One request. ``start`` and ``stop`` say where the answer lies in the trajectory's ids.

    ``prompt_tokens`` is the length that the server reports; exact ids have ``start`` there.
    """

    start: int
    stop: int
    logprobs: list[float]
    prompt_tokens: int


@dataclass
class Trajectory:
    """All that a trainer needs of one episode.

    ``ids`` [T]; ``pixel_values`` and ``grids`` as the HF processor made them, one tensor an image.
    ``placeholder`` says that the model sampled one, ``refusal`` that the server refused a turn.
    """

    ids: list[int] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    pixel_values: list[torch.Tensor] = field(default_factory=list)
    grids: list[torch.Tensor] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    placeholder: bool = False
    refusal: Refused | None = None


class Agent:
    """Plays tasks. ``processor`` is the HF processor that the trainer and the server have too."""

    def __init__(self, engine: Engine, processor: Any) -> None:
        self._engine = engine
        self._processor = processor
        names = [END, "<|image_pad|>", "<|video_pad|>"]
        self._end, *self._placeholders = processor.tokenizer.convert_tokens_to_ids(names)

    def play(self, task: Task, **sampling: Any) -> Trajectory:
        """One episode: look, zoom, look again, answer. ``sampling`` is for tests alone."""
        done = Trajectory()
        self._see(done, PROMPT.format(question=task.question), task.picture)
        last: Action | None = None
        for turn in range(environment.MAX_TURNS):
            try:
                answer = self._answer(done, sampling)
            except Refused as refusal:
                done.refusal = refusal
                break
            action = environment.read_action(task, answer)
            last = action or last
            if answer[-1] in self._placeholders:
                # It stands for an image that is not there: no server could be sent it back, and no trainer
                # could be fed it. It was sampled all the same, so it stays, as the last token to learn from.
                done.placeholder = True
                break
            if action is None or action.final or turn + 1 == environment.MAX_TURNS:
                break
            # An answer cut at its longest has no end of its own.
            end = "" if answer[-1] == self._end else END
            self._see(done, end + OBSERVATION, environment.zoom(task, action.box))
        done.reward = environment.reward(task, last)
        return done

    def _see(self, done: Trajectory, text: str, image: Image) -> None:
        """Append a text with one image, expanded."""
        seen = self._processor(text=[text], images=[image], return_tensors="pt")
        done.ids += seen["input_ids"][0].tolist()
        done.images.append(image)
        done.pixel_values.append(seen["pixel_values"])
        done.grids.append(seen["image_grid_thw"])

    def _answer(self, done: Trajectory, sampling: dict[str, Any]) -> list[int]:
        """Append what the model says to all it has seen."""
        answer = self._engine.generate(
            done.ids,
            done.images,
            {**SAMPLING, "max_new_tokens": ANSWER_TOKENS, "stop_token_ids": self._placeholders, **sampling},
        )
        start = len(done.ids)
        done.ids += answer.ids
        done.turns.append(Turn(start, len(done.ids), answer.logprobs, answer.prompt_tokens))
        return answer.ids


def _data_url(image: Image) -> str:
    """PNG is lossless: the server sees the very pixels that the trainer sees."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
