"""The rows of the table of seams that belong to ``deepstack``; `table` puts all repairs' rows together."""

from __future__ import annotations

from functools import partial

from deepeyes_patch.seams.facts import COMMUNICATOR, leaves_sums_to_the_next_layer
from deepeyes_patch.seams.rows import Seam, named

MODEL = "sglang.srt.models.qwen3_vl_moe"

_in_model = partial(
    Seam,
    "deepstack",
    MODEL,
    named("Qwen3MoeLLMModel"),
    applies=leaves_sums_to_the_next_layer,
    optional_module=True,
)

DEEPSTACK = (
    _in_model(
        "__init__()",
        "mrope.deepstack:build_model",
        "0.5.3 - 0.5.20",
        "stop a model whose deepstack features could be lost",
        door="mrope.deepstack:build_model",
    ),
    _in_model(
        "forward(self, input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors, "
        "input_deepstack_embeds)",
        "mrope.deepstack:note_layers",
        "0.5.3 - 0.5.20",
        "note in the batch which layers get deepstack features in this pass",
        traceable=True,
        reported=True,
    ),
    Seam(
        *("deepstack", COMMUNICATOR, named("LayerCommunicator")),
        "should_fuse_mlp_allreduce_with_next_layer(self, forward_batch)",
        "mrope.deepstack:reduce_here",
        "0.5.3 - 0.5.20",
        "let these layers do their all-reduce themselves",
        applies=leaves_sums_to_the_next_layer,
        optional_module=True,
        traceable=True,
    ),
)
