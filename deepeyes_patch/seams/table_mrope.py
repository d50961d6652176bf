"""The rows of the table of seams that belong to ``mrope``; `table` has the others, and puts them together."""

from __future__ import annotations

from functools import partial

from deepeyes_patch.seams.facts import (
    COMPUTING,
    GETTERS,
    KERNEL,
    asks,
    asks_by_no_known_getter,
    drops_positions,
    ignores_interleaving,
    kernel_reads_t_alone,
)
from deepeyes_patch.seams.rows import Seam, ending, named, nowhere

ROTARY_EMBEDDING = "sglang.srt.layers.rotary_embedding"
MODELS = ("sglang.srt.models.qwen3_vl", "sglang.srt.models.qwen3_vl_moe", "sglang.srt.models.qwen3_5")
QWEN3_5 = MODELS[-1]
FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info"
# The classes of these modules that hold a whole model.
BUILT = ending("ForConditionalGeneration")

_in_rotary_embedding = partial(Seam, "mrope", ROTARY_EMBEDDING)
_in_qwen3_5 = partial(Seam, "mrope", QWEN3_5, applies=kernel_reads_t_alone, optional_module=True)
_in_forward_batch = partial(
    Seam,
    "mrope",
    FORWARD_BATCH,
    named("ForwardBatch"),
    applies=drops_positions,
    demand=asks_by_no_known_getter,
)

MROPE = (
    _in_rotary_embedding(
        None,
        "get_rope(head_size, rotary_dim, base, rope_scaling)",
        "mrope.binding:get_rope",
        "0.5.3 -",
        "read the config as transformers does; make the rope interleaved, or refuse it",
        door="mrope.building:refuse_rope",
        imported_by_name=True,
    ),
    _in_rotary_embedding(
        named("MRotaryEmbedding"),
        "forward(positions, query, key)",
        None,
        "0.5.3 - 0.5.3.post1",
        "our subclass overrides it",
        applies=ignores_interleaving,
        reported=True,
    ),
    _in_rotary_embedding(
        named("RotaryEmbedding"),
        "forward_native(positions, query, key)",
        None,
        "0.5.3 - 0.5.3.post1",
        "our subclass calls it",
        applies=ignores_interleaving,
    ),
    *(
        Seam(
            *("mrope", module, BUILT),
            "__init__()",
            "mrope.building:build_model",
            releases,
            "note that a model is being built which transformers always interleaves",
            door="mrope.building:build_model",
            optional_module=True,
        )
        for module, releases in zip(MODELS, ("0.5.3 -", "0.5.3 -", "0.5.9 -"), strict=True)
    ),
    _in_qwen3_5(
        None,
        "get_rope(head_size, rotary_dim, rope_scaling)",
        "mrope.gated_attention:get_rope",
        "0.5.15 - 0.5.18",
        "refuse sections in another layout when the model is built",
        door="mrope.building:refuse_rope",
    ),
    _in_qwen3_5(
        named("Qwen3_5ForCausalLM"),
        "forward(self, input_ids, positions, forward_batch)",
        "mrope.gated_attention:gather_once",
        "0.5.15 - 0.5.18",
        "gather the cos and sin rows of the batch, once a pass",
        traceable=True,
    ),
    _in_qwen3_5(
        named("Qwen3_5AttentionDecoderLayer"),
        "forward_prepare_cuda_fused(self, positions, hidden_states)",
        "mrope.gated_attention:gather_in_layer",
        "0.5.15 - 0.5.18",
        "gather them for a model with a forward of its own (Intern-S2)",
        traceable=True,
        reported=True,
    ),
    _in_qwen3_5(
        None,
        f"{KERNEL}(q_gate, k, q_weight, k_weight, cos_sin_cache, positions)",
        "mrope.gated_attention:hand_over_rows",
        "0.5.15 - 0.5.18",
        "hand the rows to the kernel as its cache",
        traceable=True,
    ),
    _in_forward_batch(
        f"{COMPUTING[0]}()",
        "mrope.on_policy:compute_positions",
        "0.5.8 -",
        "under --rl-on-policy-target, give images the positions that the processor made",
        door="mrope.on_policy:refuse_positions",
    ),
    *(
        _in_forward_batch(f"{name}()", None, "0.5.18 -", "the function above calls it", required=nowhere)
        for name in COMPUTING[1:]
    ),
    *(
        Seam(
            *("mrope", FORWARD_BATCH, None),
            f"{getter}()",
            "mrope.on_policy:hide_target",
            releases,
            "name no training system to the functions above",
            applies=partial(asks, getter),
            traceable=True,
        )
        for getter, releases in zip(
            GETTERS, ("0.5.8 - 0.5.15.post1", "0.5.16 - 0.5.16", "0.5.17 -"), strict=True
        )
    ),
)
