"""Stand-in for SGLang's CUDA kernels on a machine without CUDA.

SGLang imports dozens of names from here that only its CUDA paths call; which names, and from which
sub-modules, changes with every release. So every name and every sub-module exists, and using any
of them raises.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch

# Operators that a release stores at import without asking whether they exist. An operator is defined
# for these only: SGLang takes the mere presence of others ("convert_weight_packed",
# "fused_qk_norm_cpu", ...) as 'this CPU can use it'. Without an implementation the dispatcher
# raises on a call, and a schema is never looked at before that.
_OPERATORS = (
    "fused_gdn_gating_cpu",
    "fused_sigmoid_gating_delta_rule_update_cpu",
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)

_library = torch.library.Library("sgl_kernel", "DEF")
for _name in _OPERATORS:
    _library.define(f"{_name}(Tensor x) -> Tensor")


class Unavailable:
    """A name of ``sgl_kernel`` that can be imported and looked into, but not called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Unavailable:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Unavailable(f"{self._name}.{attribute}")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{self._name} is a CUDA kernel; the lab has only its name")

    def __repr__(self) -> str:
        return f"<unavailable {self._name}>"


def _give_every_name(module: ModuleType) -> None:
    def __getattr__(attribute: str) -> Unavailable:
        # Dunders are questions of the import system and of inspect, not names of the package.
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Unavailable(f"{module.__name__}.{attribute}")

    module.__getattr__ = __getattr__  # type: ignore[method-assign]


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes every ``sgl_kernel.<anything>`` importable."""

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(__name__ + "."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        _give_every_name(module)


# To 0.5.16, encoder disaggregation joins the embeddings of its parts on the GPU and brings them back at once.
# For servers that ask for it, they are joined where they are; elsewhere a tensor sent to a GPU is an error.
if os.environ.get("LAB_TENSORS_STAY"):
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]

# SGLang keeps the experts of each token in page-locked memory, on a CPU too, and only a GPU's driver can lock
# pages. For servers that ask for it, such memory is plain memory: copies to and from it hold the same.
if os.environ.get("LAB_PAGEABLE"):
    _zeros = torch.zeros

    def _pageable_zeros(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return _zeros(*args, **kwargs)

    torch.zeros = _pageable_zeros
    # From 0.5.23 on it is registered with the driver instead.
    torch.cuda.cudart = lambda: SimpleNamespace(cudaHostRegister=lambda *range_and_flags: 0)

__version__ = "0+lab"
sys.meta_path.append(_Submodules())
_give_every_name(sys.modules[__name__])
