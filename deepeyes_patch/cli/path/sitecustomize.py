"""``deepeyes-patch run`` puts the folder of this file on ``PYTHONPATH`` if Python does not read our ``.pth``.

When Python starts, it imports the first ``sitecustomize`` on its path. This one does the work of the ``.pth``
line. Then it runs the ``sitecustomize`` that it hides.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _start() -> None:
    try:
        from deepeyes_patch import start
    except ImportError as error:
        sys.meta_path.insert(0, _Missing(error))
    else:
        start()


class _Missing:
    """Meta-path finder that stops SGLang, if a Python below ``deepeyes-patch run`` lacks the package."""

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "sglang":
            raise RuntimeError(
                f"deepeyes-patch run started this process, and its Python ({sys.executable}) cannot load "
                f"deepeyes_patch: {self._reason}. Install it there, or start SGLang without "
                f"deepeyes-patch run."
            )


def _hand_over() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    # This removes the folder in this process only. Children find it in PYTHONPATH again.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec(__name__)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[__name__] = module
        spec.loader.exec_module(module)


_value = os.environ.get("DEEPEYES_PATCH") or os.environ.get("RELAX_DEEPEYES_QWEN_VL_PATCH") or ""
if _value.strip().lower() not in ("", "0", "false", "off"):
    _start()
_hand_over()
