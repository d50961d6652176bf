"""With ``sampling``, the scheduler gets a request that no placeholder can be sampled for.

tests/e2e/test_sampling.py samples on real servers.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deepeyes_patch
from tests.lab import managers
from tests.sglang import rollouts
from tests.sglang.rollouts import picture

IMAGES = [picture(448, 224)]
OWN = {"200": 1.5}


@pytest.fixture
def forbidding() -> Iterator[None]:
    deepeyes_patch.install(["processor", "sampling"])
    try:
        yield
    finally:
        deepeyes_patch.uninstall()


def bias(folder: Path, own: dict[str, float] | None = OWN, **fields: Any) -> dict[str, float] | None:
    """The ``logit_bias`` that the scheduler gets."""
    io_struct = importlib.import_module("sglang.srt.managers.io_struct")
    parameters = {"max_new_tokens": 2, **({} if own is None else {"logit_bias": own})}
    request = io_struct.GenerateReqInput(sampling_params=parameters, **fields)
    found: dict[str, float] | None = managers.tokenize(
        managers.manager(folder), request
    ).sampling_params.logit_bias
    return found


def placeholders(folder: Path) -> set[str]:
    config = json.loads((folder / "config.json").read_text())
    return {str(config[f"{name}_token_id"]) for name in ("image", "video", "vision_start")}


def with_images(folder: Path) -> dict[str, Any]:
    return {"input_ids": rollouts.expanded(folder, IMAGES).ids, "image_data": list(IMAGES)}


def test_with_images(forbidding: None, folder: Path) -> None:
    found = bias(folder, **with_images(folder))
    assert found is not None
    assert set(found) == {*OWN, *placeholders(folder)}
    assert found["200"] == OWN["200"]
    assert all(found[token] < -1000 for token in placeholders(folder))


def test_without_images(forbidding: None, folder: Path) -> None:
    """The next turn may have the first image."""
    found = bias(folder, own=None, input_ids=rollouts.tokenize(folder, "A prompt."))
    assert found is not None
    assert set(found) == placeholders(folder)


def test_it_has_the_last_word(forbidding: None, folder: Path) -> None:
    wish = dict.fromkeys(placeholders(folder), 5.0)
    found = bias(folder, own=wish, **with_images(folder))
    assert found is not None
    assert all(value < -1000 for value in found.values())


@pytest.mark.parametrize("own", [[5], "12"])
def test_a_bias_of_another_kind_is_refused(forbidding: None, folder: Path, own: Any) -> None:
    """Releases that check the ids alone let it through to the scheduler."""
    with pytest.raises(ValueError, match="logit_bias is a "):
        bias(folder, own=own, **with_images(folder))


def test_text_prompts_stay_as_they_are(forbidding: None, folder: Path) -> None:
    assert bias(folder, text=rollouts.conversation(1), image_data=list(IMAGES)) == OWN
    assert bias(folder, own=None, text="A prompt.") is None


def test_it_is_off_unless_it_is_named(patched: None, folder: Path) -> None:
    assert bias(folder, **with_images(folder)) == OWN
