"""Which of our files and functions one request and one rope pass: ``python -m tests.bench.road``.

Run in the environment of one release. The interpreter's profile hook counts, on every thread; nothing
is timed. With ``--calls`` every call is printed, indented by depth.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab import flags

os.environ.update(flags.ENVIRONMENT)

import deepeyes_patch
from tests.lab import models, processors
from tests.sglang import rollouts

PACKAGE = str(Path(deepeyes_patch.__file__).parent)


class Road:
    """The calls of our own functions, in order: (depth, module, function)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[tuple[int, str, str]] = []
        self._stacks: dict[int, list[str]] = {}

    def __enter__(self) -> Road:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _see(self, frame: Any, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or "verification" in file:  # whose harness sends the request
            return
        stack = self._stacks.setdefault(threading.get_ident(), [])
        module = file[len(PACKAGE) + 1 : -3].replace("/", ".")
        if event == "call":
            self.calls.append((len(stack), module, frame.f_code.co_qualname))
            stack.append(module)
        elif event == "return" and stack:
            stack.pop()

    def summary(self) -> str:
        modules = [module for _, module, _ in self.calls]
        functions = {(module, name) for _, module, name in self.calls}
        changes = sum(before != after for before, after in itertools.pairwise(modules))
        return (
            f"{self.name}: {len(self.calls)} calls of {len(functions)} functions in {len(set(modules))} "
            f"files, {changes} changes of file"
        )


def seen(name: str, work: Callable[[], object]) -> Road:
    work()  # what is done once, such as reading signatures, is not part of the road
    with Road(name) as road:
        work()
    return road


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--calls", action="store_true")
    chosen = arguments.parse_args()
    folder = models.ensure("qwen3_vl")
    processors.processor_class()
    deepeyes_patch.install(["processor", "mrope"])
    processor = processors.build(folder)
    request = rollouts.expanded(folder, [rollouts.picture(448, 224), rollouts.picture(448, 448)])
    rope = importlib.import_module("sglang.srt.layers.rotary_embedding")
    scaling = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}

    def build_rope() -> object:
        return rope.get_rope(128, 128, 512, 5_000_000, True, scaling)

    print(f"SGLang {flags.installed().version}")
    for road in (
        seen("input_ids with two images", lambda: processors.process(processor, request.ids, request.images)),
        seen("rope_scaling", build_rope),
    ):
        print(road.summary())
        for depth, module, function in road.calls if chosen.calls else ():
            print(f"  {'  ' * depth}{module}: {function}")


if __name__ == "__main__":
    main()
