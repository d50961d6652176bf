"""``--rl-on-policy-target``: the positions of a batch, by SGLang's own ForwardBatch.

Expected positions are those of ``transformers``. The scheduler hands over what the processor made, here
``transformers``' own positions, and SGLang cuts out of them what a pass needs.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import deepeyes_patch
from deepeyes_patch.mrope import on_policy
from deepeyes_patch.seams.facts import GETTERS, drops_positions
from deepeyes_patch.seams.source import SourceView
from deepeyes_patch.seams.table_mrope import FORWARD_BATCH
from tests.lab import installed, models, processors, reference
from tests.sglang import rollouts

PREFIX = 20  # ends inside the first image
TEXT = 9


def depends_on_the_target() -> bool:
    (file,) = installed.sources(FORWARD_BATCH)
    view = SourceView(file.parents[2])
    return drops_positions(view, view.module(FORWARD_BATCH))


pytestmark = pytest.mark.skipif(
    not depends_on_the_target(), reason="positions do not depend on the training system in this release"
)


@pytest.fixture(params=["qwen3_vl", "qwen2_5_vl"])
def folder(request: pytest.FixtureRequest) -> Path:
    return models.ensure(request.param)


@pytest.fixture
def module(folder: Path) -> Iterator[Any]:
    """SGLang's module, in a process whose arguments name a training system."""
    environment = dict(os.environ)
    processors.build(folder, rl_on_policy_target="fsdp", attention_backend="triton")
    yield importlib.import_module(FORWARD_BATCH)
    # With a training system, SGLang sets variables, too.
    os.environ.clear()
    os.environ.update(environment)
    processors.build(folder)


@pytest.fixture
def patched(module: Any) -> Iterator[None]:
    on_policy._say_once.cache_clear()
    deepeyes_patch.install(["mrope"])
    yield
    deepeyes_patch.uninstall()


@pytest.fixture
def right(folder: Path) -> tuple[torch.Tensor, int]:
    """Positions int64 [3, T] of a prompt with two images, and the delta."""
    images = [rollouts.picture(448, 224), rollouts.picture(224, 672)]
    made = reference.expand(folder, rollouts.conversation(2), images)
    return reference.positions(folder, made.input_ids, made.grids)


def computed(module: Any, mode: str, prefix: int, lengths: list[int], media: list[Any]) -> torch.Tensor:
    """Positions int64 [3, tokens] of a batch. ``lengths``: of each sequence, what is cached included."""
    batch = object.__new__(module.ForwardBatch)
    batch.forward_mode = getattr(module.ForwardMode, mode)
    batch.seq_lens = batch.seq_lens_cpu = torch.tensor(lengths)
    batch.mrope_positions = None
    prefixes = [prefix, *[0] * (len(lengths) - 1)]
    rest = [length - own for length, own in zip(lengths, prefixes, strict=True)]
    scheduled = SimpleNamespace(
        multimodal_inputs=media,
        reqs=[SimpleNamespace(session=None) for _ in lengths],
        # By their names up to 0.5.12.post1, and since.
        extend_prefix_lens=prefixes,
        extend_seq_lens=rest,
        prefix_lens=prefixes,
        extend_lens=rest,
    )
    batch._compute_mrope_positions(SimpleNamespace(device="cpu"), scheduled)
    return batch.mrope_positions


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "deepeyes_patch"]


def of_text(first: int, after: int) -> torch.Tensor:
    return torch.arange(first, after).expand(3, -1)


def passes(module: Any, right: tuple[torch.Tensor, int]) -> dict[str, tuple[torch.Tensor, ...]]:
    """For each kind of pass: what SGLang computes, what is right, and what text would have.

    A request without images is in the same batch.
    """
    positions, delta = right
    length = positions.shape[1]
    image = SimpleNamespace(
        mrope_positions=positions,
        mrope_position_delta=torch.tensor([[delta]]),
        mrope_position_delta_repeated_cache=None,
    )
    media = [image, None]
    text = of_text(0, TEXT)
    found = {}
    for name, prefix in (("prefill", 0), ("the second chunk of a prefill", PREFIX)):
        found[name] = (
            computed(module, "EXTEND", prefix, [length, TEXT], media),
            torch.cat((positions[:, prefix:], text), dim=1),
            torch.cat((of_text(prefix, length), text), dim=1),
        )
    found["decode"] = (
        computed(module, "DECODE", 0, [length + 5, TEXT], media),
        torch.tensor([[length + 4 + delta, TEXT - 1]] * 3),
        torch.tensor([[length + 4, TEXT - 1]] * 3),
    )
    return found


def test_stock_gives_images_text_positions(module: Any, right: tuple[torch.Tensor, int]) -> None:
    for name, (found, correct, text) in passes(module, right).items():
        assert torch.equal(found, text), name
        assert not torch.equal(found, correct), name


def test_patched_gives_those_of_transformers(
    module: Any, right: tuple[torch.Tensor, int], patched: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert deepeyes_patch.status()["mrope"] in ("native", "waiting")
    with caplog.at_level(logging.INFO, logger="deepeyes_patch"):
        for name, (found, correct, _) in passes(module, right).items():
            assert torch.equal(found, correct), name
    assert deepeyes_patch.status()["mrope"] == "patched (ForwardBatch)"
    assert sum("because of --rl-on-policy-target fsdp" in line for line in ours(caplog)) == 1


def test_only_the_positions_forget_the_training_system(module: Any, patched: None) -> None:
    (getter,) = (getattr(module, name) for name in GETTERS if hasattr(module, name))
    arguments = getter()
    target = getattr(arguments, "deterministic", arguments).rl_on_policy_target
    assert target == "fsdp"
    assert getter() is arguments, "SGLang's own object"


def test_without_a_training_system_nothing_is_said(
    folder: Path,
    module: Any,
    right: tuple[torch.Tensor, int],
    patched: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    processors.build(folder)
    with caplog.at_level(logging.INFO, logger="deepeyes_patch"):
        for name, (found, correct, _) in passes(module, right).items():
            assert torch.equal(found, correct), name
    assert ours(caplog) == []
