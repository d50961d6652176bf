"""The wrappers of ``deepstack``: which layers do their all-reduce themselves, in which pass.

Real models and servers are in ``tests/e2e/test_fusion.py``. SGLang may compile the forward pass, so it is
compiled here as well, in one graph.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deepeyes_patch.mrope import deepstack

HIDDEN, LAYERS = 4, 5


@dataclasses.dataclass
class ForwardBatch:
    """A dataclass, as SGLang's is."""


class Communicator:
    """Leaves every all-reduce to the next layer."""

    def should_fuse_mlp_allreduce_with_next_layer(self, forward_batch: Any) -> bool:
        return True


class Model:
    """Returns, per layer, 1 where the layer does its all-reduce itself."""

    def __init__(self, start_layer: int = 0, end_layer: int = LAYERS) -> None:
        self.hidden_size, self.start_layer, self.end_layer = HIDDEN, start_layer, end_layer
        self.layers = [SimpleNamespace(layer_communicator=Communicator()) for _ in range(LAYERS)]

    def forward(
        self,
        input_ids: Any,
        positions: Any,
        forward_batch: Any,
        input_embeds: Any,
        pp_proxy_tensors: Any,
        input_deepstack_embeds: Any,
    ) -> Any:
        own = torch.zeros(LAYERS)
        for i in range(self.start_layer, self.end_layer):
            communicator = self.layers[i].layer_communicator
            if not communicator.should_fuse_mlp_allreduce_with_next_layer(forward_batch):
                own[i] += 1
        return own


@pytest.fixture(params=["plain", "compiled"])
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Which layers of a model do their all-reduce in a pass."""
    name = "should_fuse_mlp_allreduce_with_next_layer"
    monkeypatch.setattr(Communicator, name, deepstack.reduce_here(getattr(Communicator, name)))
    forward: Any = deepstack.note_layers(Model.forward)
    if request.param == "compiled":
        torch.compiler.reset()
        forward = torch.compile(forward, fullgraph=True, backend="eager")

    def run(model: Model, features: int | None) -> list[int]:
        """A pass with the features of so many layers."""
        embeds = None if features is None else torch.ones(3, features * HIDDEN)
        found: list[float] = forward(model, None, None, ForwardBatch(), None, None, embeds).tolist()
        return [i for i, value in enumerate(found) if value]

    return run


def test_the_layers_that_get_features(own: Any) -> None:
    assert own(Model(), 3) == [0, 1, 2]


def test_a_pass_without_features(own: Any) -> None:
    model = Model()
    assert own(model, 3) == [0, 1, 2]
    assert own(model, None) == []


def test_the_ranks_of_a_pipeline(own: Any) -> None:
    assert own(Model(0, 2), 3) == [0, 1]
    assert own(Model(2, 5), 3) == [2]
    assert own(Model(3, 5), 3) == []
