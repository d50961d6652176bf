"""A real server is sent a clip, and the ids that ``transformers`` made of it."""

from __future__ import annotations

import base64
import inspect
from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.lab import client, reference
from tests.lab.client import Answer
from tests.lab.server import Server
from tests.sglang import films
from tests.sglang.films import SCENES, Request, Scene


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


SHAPES = {
    "expanded": lambda folder, request: request,
    "drifted": films.drifted,
    "short": films.short,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["one video", "videos among images"])
def test_ids_of_transformers_are_served(name: str, shape: str, folder: Path, launched: Server) -> None:
    scene = SCENES[name]
    request: Request = SHAPES[shape](folder, films.of_transformers(folder, scene))
    answer = ask(launched.url, request.ids, scene)
    assert answer.status == 200, answer.body
    assert answer.prompt_tokens == len(request.expected_ids)
    made = reference.expand(folder, scene.text, scene.images, scene.clips)
    scores, shortfalls = reference.scores(
        folder,
        request.expected_ids,
        made.grids,
        made.pixel_values,
        answer.output_ids,
        made.video_grids,
        made.video_values,
    )
    assert len(answer.logprobs) == shapes.NEW_TOKENS
    errors = [abs(ours - theirs) for ours, theirs in zip(answer.logprobs, scores.tolist(), strict=True)]
    assert max(errors) < shapes.NOISE
    assert float(shortfalls.max()) < 2 * shapes.NOISE
    print(f"{name}, {shape}: {answer.prompt_tokens} tokens, log-probs off by {max(errors):.5f} at most")


def test_another_clip_is_refused(folder: Path, launched: Server) -> None:
    request = films.of_transformers(folder, SCENES["one video"])
    answer = ask(launched.url, request.ids, Scene("", SCENES["two videos"].clips[1:], []))
    assert answer.status == 400, answer.body
    assert "video 0 of 1: input_ids hold" in answer.body["error"]["message"]
