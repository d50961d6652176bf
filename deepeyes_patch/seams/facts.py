"""Facts about a release of SGLang. They decide whether a row of the table applies or is required.

They are read from the functions of the release, never from its version number.
"""

from __future__ import annotations

from deepeyes_patch.seams.rows import Function, Handle, View

KERNEL = "fused_qk_gemma_rmsnorm_rope_gate"
# Where LayerCommunicator lies, and what marks an output whose all-reduce is left to the next layer.
COMMUNICATOR = "sglang.srt.layers.communicator"
UNREDUCED = "_sglang_needs_allreduce_fusion"
TARGET = "rl_on_policy_target"
# The functions by which `forward_batch_info` has asked for SGLang's arguments, oldest first.
GETTERS = ("get_global_server_args", "get_server_args", "get_exec")
# The methods of ForwardBatch that compute positions; the first calls the others, where there are others.
COMPUTING = (
    "_compute_mrope_positions",
    "_compute_mrope_positions_decode",
    "_compute_mrope_positions_extend",
)


def makes_artifacts(view: View, qwen_vl: Handle) -> bool:
    """Whether raw images go through ``compose_image_artifacts``, so that build_input_ids alone makes ids."""
    owners = [cls for _, cls in view.classes(qwen_vl) if view.function(cls, "process_mm_data_async")]
    return any(view.function(cls, "compose_image_artifacts") for cls in owners)


def ignores_interleaving(view: View, rotary_embedding: Handle) -> bool:
    """Whether MRotaryEmbedding ignores ``mrope_interleaved``."""
    cls = view.named(rotary_embedding, "MRotaryEmbedding")
    init = None if cls is None else view.function(cls, "__init__")
    return init is None or "mrope_interleaved" not in init.parameters


def kernel_reads_t_alone(view: View, qwen3_5: Handle) -> bool:
    """Whether Qwen3.5's fused kernel exists and takes only one position per token."""
    kernel = view.function(qwen3_5, KERNEL)
    return kernel is not None and not any("mrope" in name for name in kernel.parameters)


def drops_positions(view: View, forward_batch_info: Handle) -> bool:
    """Whether positions depend on ``--rl-on-policy-target``, so that images get those of text.

    Nothing else in the class does. A renamed method is noticed, because the class still names the option.
    """
    cls = view.named(forward_batch_info, "ForwardBatch")
    return cls is not None and TARGET in view.uses(cls)


def leaves_sums_to_the_next_layer(view: View, _: Handle) -> bool:
    """Whether a layer can leave the all-reduce of its output to the next layer's norm.

    No part of that norm takes deepstack features. A renamed method is noticed, because the class still reads
    the mark of such an output.
    """
    communicator = view.module(COMMUNICATOR)
    cls = None if communicator is None else view.named(communicator, "LayerCommunicator")
    return cls is not None and UNREDUCED in view.uses(cls)


def asks(getter: str, view: View, forward_batch_info: Handle) -> bool:
    """Whether positions depend on it, and this getter is asked for it."""
    cls = view.named(forward_batch_info, "ForwardBatch")
    return cls is not None and {TARGET, getter} <= view.uses(cls)


def asks_by_no_known_getter(function: Function) -> str | None:
    """The problem of a function whose positions depend on ``--rl-on-policy-target`` in an unknown way."""
    if TARGET not in function.uses or not function.uses.isdisjoint(GETTERS):
        return None
    return f"it reads {TARGET}, and asks none of {', '.join(GETTERS)} for it"
