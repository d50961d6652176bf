"""What ``torch.compile`` makes of Triton launches, on a machine without a GPU. For child processes only.

Import it before anything that asks for Triton: with it, the process believes that it has a GPU. A traced
graph is never run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils._triton

torch.utils._triton.has_triton = lambda: True


class Traced(Exception):
    """The graph is there, and was told."""


def backend(name: str) -> Callable[..., Callable[..., Any]]:
    """A backend that prints ``name``, how many Triton launches the graph has, and their grids."""

    def compile_graph(graph: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            launches = [node for node in graph.graph.nodes if "triton_kernel_wrapper" in str(node.target)]
            print(name, len(launches), [str(node.kwargs["grid"]) for node in launches])
            raise Traced

        return run

    return compile_graph
