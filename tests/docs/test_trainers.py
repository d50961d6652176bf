"""The lines for each framework carry the variable, in the form in which the framework takes it."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml

from tests.docs import pages
from tests.docs.conftest import Shell

PAGE = pages.page("trainers")
BLOCKS = {"verl", "verl-file", "verl-job", "slime", "miles", "areal", "relax"}


def test_every_block_is_accounted_for() -> None:
    assert {block.name for block in PAGE.blocks} == BLOCKS


@pytest.mark.parametrize("name", ["miles", "relax"])
def test_a_job_gets_the_variable(name: str) -> None:
    (option,) = (word for word in shlex.split(PAGE.block(name)) if word.startswith("--runtime-env-json="))
    assert json.loads(option.partition("=")[2])["env_vars"]["DEEPEYES_PATCH"] == "1"


def test_verl_gets_a_string() -> None:
    """Hydra takes the inner quotes off; without them it would make a number of the value."""
    *_, override = shlex.split(PAGE.block("verl"))
    key, _, value = override.partition("=")
    assert key == "+ray_kwargs.ray_init.runtime_env.env_vars.DEEPEYES_PATCH"
    assert yaml.safe_load(value) == "1"
    assert yaml.safe_load(PAGE.block("verl-file"))["env_vars"] == {"DEEPEYES_PATCH": "1"}


def test_areal_gets_a_string() -> None:
    (spec,) = yaml.safe_load(PAGE.block("areal"))["rollout"]["scheduling_spec"]
    assert spec["env_vars"] == {"DEEPEYES_PATCH": "1"}


@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_the_bias_is_json_for_the_real_vocabulary(language: str) -> None:
    """`<|image_pad|>`, `<|video_pad|>` and `<|vision_start|>`, from Qwen2-VL to Qwen3-VL."""
    text = pages.page("trainers", language).path.read_text(encoding="utf-8")
    (found,) = re.findall(r"preferred_sampling_params='(.*?)'`", text)
    assert set(json.loads(found)["logit_bias"]) == {"151655", "151656", "151652"}


def test_slime_gets_the_variable(shell: Shell) -> None:
    """The shell makes JSON of it, in double quotes as on the page, and in single quotes as the text says."""
    assignment = PAGE.block("slime").partition("ray job")[0]
    (alone,) = re.findall(r"the line is `(.*?)`", PAGE.path.read_text(encoding="utf-8"))
    single = f'RUNTIME_ENV_JSON=\'{{"env_vars": {{\n{alone}\n"A": "1"}}}}\'\n'
    assert assignment.startswith('RUNTIME_ENV_JSON="')
    for script in (assignment, single):
        variables = json.loads(shell(script + 'echo "${RUNTIME_ENV_JSON}"'))["env_vars"]
        assert variables["DEEPEYES_PATCH"] == "1", script
