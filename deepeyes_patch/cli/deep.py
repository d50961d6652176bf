"""``python -m deepeyes_patch.cli.deep``: apply the selected repairs to the real SGLang, in this process.

A child of ``doctor --deep``; prints JSON as its last line.
"""

from __future__ import annotations

import importlib
import json
import os

# As a server imports them; 0.5.3's processors run into a circular import without the first.
_MODULES = (
    "sglang.srt.layers.quantization",
    "sglang.srt.managers.tokenizer_manager",
    "sglang.srt.managers.multimodal_processor",
    "sglang.srt.multimodal.processors.qwen_vl",
    "sglang.srt.layers.rotary_embedding",
    "sglang.srt.models.qwen3_vl",
)


def main() -> None:
    import torch

    found: dict[str, object] = {"repairs": {}, "cuda": None, "error": None}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_device_name(0)
    else:
        # SGLang otherwise takes a machine without CUDA for one that is broken.
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    try:
        for name in _MODULES:
            importlib.import_module(name)
        import deepeyes_patch

        found["repairs"] = deepeyes_patch.status()
    except Exception as error:  # whatever it is, the user must read it
        found["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
