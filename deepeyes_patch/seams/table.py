"""The functions of SGLang's that the repairs wrap, as data: what `compat` looks for in a running SGLang, and
the command line in its source. Free of torch and SGLang.
"""

from __future__ import annotations

from dataclasses import replace

from deepeyes_patch.seams.examine import Seam

# --- the Qwen-VL processor (processor.py) -------------------------------------------------------------

SEAMS = (
    Seam("__init__", ("hf_config", "server_args", "_processor"), coroutine=False),
    Seam("process_mm_data_async", ("image_data", "input_text", "request_obj"), coroutine=True),
    Seam("load_mm_data", ("prompt", "image_data", "multimodal_tokens")),
    Seam("fast_load_mm_data", ("prompt", "image_data", "multimodal_tokens"), optional=True),
    Seam("legacy_load_mm_data", ("prompt", "image_data", "multimodal_tokens"), optional=True),
    Seam("process_and_combine_mm_data", ("base_output", "mm_tokens"), coroutine=False),
    Seam("process_mm_data", ("input_text", "videos"), coroutine=False),
    Seam("_process_and_collect_mm_items", ("input_text", "images"), coroutine=False),
    Seam("get_mm_items_offset", ("input_ids", "mm_token_id"), coroutine=False),
    Seam("build_input_ids", ("prompt", "img_grid_thw"), coroutine=False, optional=True),
    Seam("get_mm_data", ("prompt", "embeddings"), coroutine=False, optional=True),
)
MODULE_SEAMS = (
    Seam("preprocess_video", ("vr",), coroutine=True),
    Seam("resize_image_async", ("image",), coroutine=True, optional=True),
)
ROPE_SEAMS = (Seam("get_rope_index", ("input_ids", "vision_start_token_id"), coroutine=False),)


def processor_seams(makes_artifacts: bool) -> tuple[Seam, ...]:
    """`SEAMS`, for a class that has ``compose_image_artifacts`` (0.5.20 and later) or not."""
    if not makes_artifacts:
        return SEAMS
    # Its ids are made by build_input_ids alone.
    return tuple(replace(s, optional=s.optional and s.name != "build_input_ids") for s in SEAMS)


# --- around it (installer.py, intake.py, receiver.py) -------------------------------------------------

FACTORY = (Seam("get_mm_processor", ("hf_config",)),)
INTAKE = (Seam("_tokenize_one_request", ("obj",), coroutine=True),)
RUST_SERVER = (Seam("launch", ("scheduler",), coroutine=False),)
GRPC_SERVER = (Seam("serve_grpc", ("server_args",), coroutine=True),)
WAITING = (
    Seam("_try_recv_mm_data", ("self",), coroutine=False),
    Seam("consume_parts", ("self", "parts"), coroutine=False, optional=True),
)
RECEIVER = (Seam("_recv_mm_data", ("mm_processor", "prompt"), coroutine=True),)

# --- the rotary embeddings (mrope/binding.py) ---------------------------------------------------------

GET_ROPE = (Seam("get_rope", ("head_size", "rotary_dim", "base", "rope_scaling"), coroutine=False),)
ROPE = (Seam("forward", ("positions", "query", "key"), coroutine=False),)
PLAIN_ROPE = (Seam("forward_native", ("positions", "query", "key"), coroutine=False),)

# --- Qwen3.5's gated attention (mrope/gated_attention.py) ---------------------------------------------

KERNEL = "fused_qk_gemma_rmsnorm_rope_gate"
MODEL = "Qwen3_5ForCausalLM"
LAYER = "Qwen3_5AttentionDecoderLayer"

GATED_ATTENTION = (
    Seam("get_rope", ("head_size", "rotary_dim", "rope_scaling"), coroutine=False),
    Seam(KERNEL, ("q_gate", "k", "q_weight", "k_weight", "cos_sin_cache", "positions"), coroutine=False),
)
GATED_MODEL = (Seam("forward", ("self", "input_ids", "positions", "forward_batch"), coroutine=False),)
GATED_LAYER = (Seam("forward_prepare_cuda_fused", ("self", "positions", "hidden_states"), coroutine=False),)
