"""A real server is sent a clip, and the ids that ``transformers`` made of it."""

from __future__ import annotations

import base64
import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.lab import client, reference
from tests.lab.client import Answer
from tests.lab.server import Server
from tests.sglang import films
from tests.sglang.films import SCENES, Request, Scene

SHAPES = ("expanded", "drifted", "short")  # of `films.SHAPES`


def decodes_without_a_gpu() -> bool:
    """Releases before 0.5.20 pin frames for a GPU even where there is none, text prompts' too."""
    from sglang.srt.utils import video_decoder

    return "_is_cpu_engine" in inspect.getsource(video_decoder)


pytestmark = pytest.mark.skipif(not decodes_without_a_gpu(), reason="this release's decoder needs a GPU")


def ask(url: str, ids: list[int], scene: Scene) -> Answer:
    clips = [f"data:video/avi;base64,{base64.b64encode(clip.data).decode()}" for clip in scene.clips]
    return client.generate(
        url,
        ids,
        scene.images or None,
        video_data=clips,
        max_new_tokens=shapes.NEW_TOKENS,
        timeout=shapes.ANSWER_SECONDS,
    )


def assert_served(folder: Path, running: Server, request: Request, name: str) -> None:
    """The server answers, on exactly the expected ids, what ``transformers`` would."""
    answer = ask(running.url, request.ids, request.scene)
    assert answer.status == 200, answer.body
    assert answer.prompt_tokens == len(request.expected_ids)
    scores, shortfalls = reference.scores(
        folder,
        request.expected_ids,
        request.grids,
        request.pixels,
        answer.output_ids,
        request.video_grids,
        request.video_pixels,
    )
    assert len(answer.logprobs) == shapes.NEW_TOKENS
    errors = [abs(ours - theirs) for ours, theirs in zip(answer.logprobs, scores.tolist(), strict=True)]
    assert max(errors) < shapes.NOISE
    assert float(shortfalls.max()) < 2 * shapes.NOISE
    print(f"{name}: {answer.prompt_tokens} tokens, log-probs off by {max(errors):.5f} at most")


def assert_another_clip_is_refused(running: Server, request: Request) -> None:
    """``request``: for the one clip of a scene."""
    answer = ask(running.url, request.ids, Scene("", SCENES["two videos"].clips[1:], []))
    assert answer.status == 400, answer.body
    assert "video 0 of 1: input_ids hold" in answer.body["error"]["message"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["one video", "videos among images"])
def test_ids_of_transformers_are_served(name: str, shape: str, folder: Path, launched: Server) -> None:
    scene = SCENES[name]
    made = reference.expand(folder, scene.text, scene.images, scene.clips)
    request = films.SHAPES[shape](folder, films.of_transformers(folder, scene))
    request = replace(request, pixels=made.pixel_values, video_pixels=made.video_values)
    assert_served(folder, launched, request, f"{name}, {shape}")


def test_another_clip_is_refused(folder: Path, launched: Server) -> None:
    assert_another_clip_is_refused(launched, films.of_transformers(folder, SCENES["one video"]))
