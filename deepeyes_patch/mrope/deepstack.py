"""Qwen3-VL-MoE's deepstack features on several GPUs, where a layer's all-reduce is fused into the next norm.

A layer may leave the all-reduce of its output to the next layer, which does it in one kernel with the add and
the norm. That kernel takes no deepstack features: 0.5.8 - 0.5.18 hand them to it and lose them. Releases
before and after add them to the output that is not reduced yet, so each rank adds them once.

A pass with deepstack features notes in its batch which layers they are added to. Those layers (3 of Qwen3-VL)
do their all-reduce themselves. All other layers, and all other passes, are fused as before.

The functions of the forward pass are plain Python, because SGLang may compile it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from deepeyes_patch.observe import outcomes
from deepeyes_patch.seams.wrapping import Call

# The attribute of a ForwardBatch that holds the communicators of the layers that get features.
_NOTE = "deepeyes_patch_deepstack_layers"


def build_model(call: Call) -> None:
    """``Qwen3MoeLLMModel.__init__``: if the repair failed, such a model is not built."""
    outcomes.raise_failure("deepstack")
    call.proceed()
    outcomes.announce()


def note_layers(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Qwen3MoeLLMModel.forward``: note the layers whose output gets features in this pass."""

    @functools.wraps(original)
    def forward(
        self: Any,
        input_ids: Any,
        positions: Any,
        forward_batch: Any,
        input_embeds: Any = None,
        pp_proxy_tensors: Any = None,
        input_deepstack_embeds: Any = None,
        **kwargs: Any,
    ) -> Any:
        if input_deepstack_embeds is not None:
            # [num_tokens, layers * hidden_size], in the order of the layers, from the first on.
            end = min(input_deepstack_embeds.shape[-1] // self.hidden_size, self.end_layer)
            communicators = [self.layers[i].layer_communicator for i in range(self.start_layer, end)]
            setattr(forward_batch, _NOTE, communicators)
        return original(
            self,
            input_ids=input_ids,
            positions=positions,
            forward_batch=forward_batch,
            input_embeds=input_embeds,
            pp_proxy_tensors=pp_proxy_tensors,
            input_deepstack_embeds=input_deepstack_embeds,
            **kwargs,
        )

    return forward


def reduce_here(original: Callable[..., Any]) -> Callable[..., Any]:
    """``LayerCommunicator.should_fuse_mlp_allreduce_with_next_layer``: not for the layers noted."""

    @functools.wraps(original)
    def should_fuse_mlp_allreduce_with_next_layer(
        self: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        for communicator in getattr(forward_batch, _NOTE, ()):
            if communicator is self:
                return False
        return original(self, forward_batch, *args, **kwargs)

    return should_fuse_mlp_allreduce_with_next_layer
