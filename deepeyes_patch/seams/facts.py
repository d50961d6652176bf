"""Facts about a release of SGLang. They decide whether a row of the table applies or is required.

They are read from the functions of the release, never from its version number.
"""

from __future__ import annotations

from deepeyes_patch.seams.rows import Handle, View

KERNEL = "fused_qk_gemma_rmsnorm_rope_gate"


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
