"""verl: its agent loop hands expanded ids and PIL images to its own SGLang server, in one Ray actor.

The switch stands where a team would write it: ``ray_kwargs.ray_init.runtime_env.env_vars``. verl has no
option for a ``logit_bias``; SGLang's ``preferred_sampling_params`` forbids placeholders, or our ``sampling``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.server_args import ServerArgs

from deepeyes_patch.errors import REFUSED
from tests.e2e import shapes
from tests.frameworks import judging, layers, playing
from tests.frameworks.driving import Child
from tests.frameworks.judging import PICTURES
from tests.lab import policies, reference

FRAMEWORK = "verl"
# Ray, six actors and an SGLang that each of them imports.
SECONDS = 900
TURNS = 3


@pytest.fixture(scope="module")
def verl(tmp_path_factory: pytest.TempPathFactory) -> Child:
    folder = tmp_path_factory.mktemp(FRAMEWORK)
    return Child(FRAMEWORK, folder, layers.python(FRAMEWORK, folder / "venv"), SECONDS)


@pytest.fixture(scope="module")
def patched(verl: Child, folder: Path) -> dict[str, Any]:
    """An episode, then rollouts whose model samples a pad: in the workers of both of verl's trainers."""
    pads = judging.placeholders(folder)
    report = verl.run(folder, "", PICTURES, pads, runtime_env={"DEEPEYES_PATCH": "1"}, pads=True)
    lines = (verl.folder / "log").read_text(errors="replace").splitlines()
    log = [line for line in lines if not line.startswith(playing.REPORT)]
    return {**report, "log": log, "off": _off(verl, folder, report, pads)}


def _off(verl: Child, folder: Path, report: dict[str, Any], without: Sequence[int]) -> float:
    """How far log-probs are from ``transformers``, on verl's pixels, with some ids taken out."""
    media = torch.load(verl.folder / "media.pt")
    ids, sampled = torch.tensor(report["ids"]), torch.tensor(report["mask"], dtype=torch.bool)
    rows = reference.distributions(folder, report["ids"], media["image_grid_thw"], media["pixel_values"])
    rows = rows[:-1].clone()
    rows[:, list(without)] = -torch.inf
    scores = rows.log_softmax(dim=-1).gather(1, ids[1:, None])[:, 0]
    return float((torch.tensor(report["logprobs"])[1:] - scores).abs()[sampled[1:]].max())


def _used(report: dict[str, Any]) -> list[list[int]]:
    """What SGLang's tokenizer manager sent to the scheduler in each turn of the episode."""
    return [sent["ids"] for sent in report["sent"][:TURNS]]


def _recorded(report: dict[str, Any]) -> list[list[int]]:
    """What verl had recorded before each answer."""
    return [report["ids"][:start] for start, _ in judging.recorded(report).spans]


def test_patched_is_exact(patched: dict[str, Any], folder: Path) -> None:
    *_, (last, _) = judging.recorded(patched).spans
    assert judging.drifts(folder, patched["ids"][:last])
    assert patched["skip_tokenizer_init"]
    assert len(_used(patched)) == TURNS
    assert _used(patched) == _recorded(patched)
    assert patched["off"] < judging.NOISE


def test_the_switch_reaches_the_server_alone(patched: dict[str, Any]) -> None:
    assert re.fullmatch(r"patched \(Qwen\w*VL\w+\)", patched["state"]["processor"])
    assert set(patched["driver"].values()) == {"off"}


def test_the_log_says_nothing_and_status_does(patched: dict[str, Any]) -> None:
    """verl runs SGLang with ``log_level="error"``."""
    assert not [line for line in patched["log"] if "; mrope: " in line]
    shown = rf"^ *{patched['pid']} .*\n +processor: patched"
    assert re.search(shown, patched["told_by_status"], re.MULTILINE), patched["told_by_status"]


def test_an_option_of_sglang_forbids_placeholders(patched: dict[str, Any], folder: Path) -> None:
    """verl sends no ``logit_bias`` of its own, so that of ``preferred_sampling_params`` counts."""
    forbidden = {str(token): -100.0 for token in judging.placeholders(folder)}
    assert [sent["logit_bias"] for sent in patched["sent"][:TURNS]] == [forbidden] * TURNS


def test_sampling_forbids_placeholders(verl: Child, folder: Path) -> None:
    """Even to the model that samples nothing else, whose second turn is refused in the tests below."""
    switch = {"DEEPEYES_PATCH": "processor,mrope,sampling"}
    report = verl.run(folder, "", PICTURES, runtime_env=switch, loop="pads")
    forbidden = policies.placeholders(folder)
    answers = judging.recorded(report).spans
    assert len(answers) == TURNS
    assert not {token for answer in answers for token in report["ids"][slice(*answer)]} & set(forbidden)
    assert _used(report) == _recorded(report)
    assert _off(verl, folder, report, forbidden) < judging.NOISE


def test_a_refusal_ends_the_job(patched: dict[str, Any]) -> None:
    """verl asks once, and its ``run_ppo`` raises what the actor has raised."""
    kinds, message = patched["raised"]
    assert kinds[:2] == ["RayTaskError(ValueError)", "RayTaskError"]
    assert REFUSED in message
    assert "without vision_start" in message


def test_the_v1_trainer_goes_on(patched: dict[str, Any]) -> None:
    """Its workers log the message, and give the prompt this status."""
    assert patched["v1"] == "failure"
    assert [line for line in patched["log"] if "(AgentLoopWorkerTQ" in line and REFUSED in line]


def test_stock(verl: Child, folder: Path, release: str) -> None:
    """0.5.12.post1 serves other ids without a word. Newer ones answer nothing.

    Nor does verl itself place a sampled pad, if nothing is sent after it.
    """
    pads = judging.placeholders(folder)
    report = verl.run(folder, "", PICTURES, pads, alone=True)
    if release != "0.5.12.post1":
        assert "IndexError" in report["raised"][1]
        return
    assert report["state"]["processor"] == "off"
    used, recorded = _used(report), _recorded(report)
    assert used[0] == recorded[0]
    assert used[1] != recorded[1]
    assert _off(verl, folder, report, pads) > shapes.WRONG
    assert "StopIteration" in report["alone"]


def test_as_it_is_it_needs_a_dataclass(patched: dict[str, Any], verl: Child, folder: Path) -> None:
    """Where ``ServerArgs`` is a Struct of msgspec, ``dataclasses.fields(ServerArgs)`` ends verl's start."""
    assert patched["mended"] != is_dataclass(ServerArgs)
    if patched["mended"]:
        report = verl.run(folder, "", PICTURES, mend=False)
        assert "must be called with a dataclass type or instance" in report["raised"][1]
