"""The files in ``examples``, ready to run here: the tiny model, a CPU, short answers.

What is put in their place is put in everywhere it stands; nothing else is changed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tests.docs import examples
from tests.e2e import shapes
from tests.e2e.rollout import trainer
from tests.e2e.rollout.agent import Trajectory, Turn
from tests.lab import children, flags, reference, server
from tests.lab.episodes import Episode
from tests.sglang import rollouts

MODEL = "Qwen/Qwen3-VL-8B-Instruct"
ADDRESS = "http://127.0.0.1:30000"
ANSWER_TOKENS = 8
SECONDS = 300

PICTURE = rollouts.picture(400, 300)  # no multiples of a patch: it is resized


def write(target: Path, folder: Path, changes: Mapping[str, str] | None = None) -> None:
    """Write the examples and the picture into ``target``, for the checkpoint in ``folder``."""
    blocks = examples.files()
    replaced = {
        MODEL: str(folder),
        '"max_new_tokens": 512': f'"max_new_tokens": {ANSWER_TOKENS}',
        '.to("cuda")': '.to("cpu")',
        **(changes or {}),
    }
    for shown, here in replaced.items():
        assert any(shown in text for text in blocks.values()), f"no example has {shown}"
        blocks = {name: text.replace(shown, here) for name, text in blocks.items()}
    for name, text in blocks.items():
        (target / name).write_text(text)
    PICTURE.save(target / "picture.png")


def engine() -> dict[str, str]:
    """Changes for an Engine on a CPU, and a trainer, both in float32."""
    fields = flags.server_args(dtype="float32", random_seed=7, log_level="error")
    start = "sglang.Engine(model_path=MODEL"
    return {f"{start})": f"{start}, **{fields!r})", "torch.bfloat16": "torch.float32"}


def run(target: Path, name: str, python: str | Path = sys.executable) -> str:
    """``python NAME`` in ``target``, without our switch in the environment; all that it says.

    Raises `children.ChildFailed`, with the end of what it said, if it ends with an error.
    """
    variables = {**shapes.STOCK, **flags.ENVIRONMENT, **server.QUICK, "NO_PROXY": "127.0.0.1"}
    children.run([python, name], target / "log", SECONDS, variables, quiet=True, cwd=target)
    return (target / "log").read_text()


def episodes(printed: str) -> Iterator[tuple[Episode, list[Any]]]:
    """Each episode that a file printed, and what it printed behind it."""
    for line in printed.splitlines():
        if line.startswith("[["):
            ids, mask, logprobs, *more = json.loads(line)
            yield Episode(ids, mask, logprobs), more


def images(count: int) -> list[Image.Image]:
    """The picture, and its middle enlarged, as `zoom` on the page says."""
    return [PICTURE, PICTURE.resize(PICTURE.size, box=(100, 75, 300, 225))][:count]


def assert_right(folder: Path, episode: Episode) -> None:
    """Prompt and observation are the HF processor's own ids, and the mask is 1 on the rest alone."""
    end, *pads = reference.processor(folder).tokenizer.convert_tokens_to_ids(
        ["<|im_end|>", "<|image_pad|>", "<|video_pad|>"]
    )
    assert len(episode.ids) == len(episode.mask) == len(episode.logprobs)
    answers = [episode.ids[start:stop] for start, stop in episode.spans]
    seen = [f"<|im_start|>user\n{rollouts.IMAGE}What is in the middle?<|im_end|>\n<|im_start|>assistant\n"]
    if len(answers) > 1:
        close = "" if answers[0][-1] == end else "<|im_end|>"
        seen.append(
            f"{close}\n<|im_start|>user\n{rollouts.IMAGE}The middle, enlarged.<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
    else:
        assert answers[0][-1] in pads, "two turns, unless a pad was sampled in the first"
    expected: list[int] = []
    for text, image, answer in zip(seen, images(len(seen)), answers, strict=True):
        expected += [*reference.expand(folder, text, [image]).input_ids, *answer]
        assert 0 < len(answer) <= ANSWER_TOKENS
    assert episode.ids == expected
    sampled = [place for start, stop in episode.spans for place in range(start, stop)]
    assert all(episode.logprobs[place] < 0 for place in sampled)
    assert not any(score for score, mask in zip(episode.logprobs, episode.mask, strict=True) if not mask)


def off(folder: Path, model: Any, episode: Episode) -> torch.Tensor:
    """float32 [N]: |log-prob by ``model`` of transformers - the server's| of each sampled id."""
    made = [
        reference.processor(folder).image_processor(images=[image], return_tensors="pt")
        for image in images(len(episode.spans))
    ]
    turns = [Turn(start, stop, episode.logprobs[start:stop], start) for start, stop in episode.spans]
    done = Trajectory(
        ids=episode.ids,
        pixel_values=[one["pixel_values"] for one in made],
        grids=[one["image_grid_thw"] for one in made],
        turns=turns,
    )
    server_side = torch.tensor([score for turn in turns for score in turn.logprobs])
    with torch.inference_mode():
        return (trainer.score(model, done) - server_side).abs()
