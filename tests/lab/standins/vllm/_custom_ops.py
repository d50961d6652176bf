"""The operators that SGLang imports by name; on a CPU it uses its own torch versions instead."""

from __future__ import annotations

from typing import Any, NoReturn


def rotary_embedding(*args: Any, **kwargs: Any) -> NoReturn:
    """Stored by SGLang's RotaryEmbedding at construction, called on CUDA only."""
    raise NotImplementedError("vllm.rotary_embedding is a CUDA kernel; the lab has only its name")
