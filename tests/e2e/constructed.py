"""``python -m tests.e2e.constructed [MODULE ...]``: constructs the processor as a server does at its start.

For starts that must fail where the processor is constructed. SGLang imports its tokenizer manager before
that; the modules that are named are imported then, too.
"""

from __future__ import annotations

import importlib
import sys

from tests.lab import processors


def main(modules: list[str]) -> None:
    processors.processor_class()  # on 0.5.3 the tokenizer manager alone runs into a circular import
    for name in ("sglang.srt.managers.tokenizer_manager", *modules):
        importlib.import_module(name)
    processors.build("qwen3_vl")


if __name__ == "__main__":
    main(sys.argv[1:])
