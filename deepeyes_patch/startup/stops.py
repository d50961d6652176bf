"""HTTP workers (``--tokenizer-worker-num``, ``--enable-http2``): new interpreters that tokenize.

SGLang loads no plugins in them, so only the start-up files reach them. Where Python does not read those
(``pip install --target``), the other processes would be repaired and the workers would not: ids explode or
drift under a log that says *patched*. Such a server must not start.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from deepeyes_patch.errors import DeepEyesPatchError
from deepeyes_patch.seams import examine as compat
from deepeyes_patch.seams import wrapping
from deepeyes_patch.seams.examine import Seam

# What every way of starting such workers comes to: the data they read when they start. Looked up in the
# module when it is called, so it does not matter who imported its callers first.
SEAMS = (Seam("write_to_shared_memory", ("obj", "name"), coroutine=False),)

_ASK_SECONDS = 60
_ASK = "import sys; sys.exit('deepeyes_patch.bootstrap' not in sys.modules)"


def apply(module: ModuleType, repair: str, switch: str, concerns: Callable[[Any], str | None]) -> None:
    """Wrap ``multi_tokenizer_mixin.write_to_shared_memory``.

    ``concerns`` gives, for a model's configuration, the model type if its requests must be repaired.

    Raises
    ------
    IncompatibleSGLangError
        The function is not there or has another shape.
    """

    def write(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        handed_over = wrapping.bind(wrapped, args, kwargs).arguments["obj"]
        model_type = concerns(_hf_config(handed_over))
        if model_type is not None and not started_children_are_reached():
            raise DeepEyesPatchError(_UNREACHED.format(model_type=model_type, switch=switch))
        return wrapped(*args, **kwargs)

    compat.require(module, SEAMS, repair, switch)
    wrapping.wrap(module, "write_to_shared_memory", write)


_UNREACHED = (
    "the HTTP workers of this server (--tokenizer-worker-num, --enable-http2) are Python processes of their "
    "own, which would tokenize the requests of this {model_type} model unrepaired: a Python that is started "
    "from here does not read deepeyes_patch.pth, and SGLang loads no plugins there. Either install "
    "deepeyes-patch into site-packages (pip install without --target), or use one tokenizer worker over "
    "HTTP/1.1, or set {switch}=off."
)


def started_children_are_reached() -> bool:
    """Whether a Python that this process starts, as multiprocessing does, begins with our start-up file."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    child = subprocess.run(
        [sys.executable, *flags, "-c", _ASK], stdin=subprocess.DEVNULL, timeout=_ASK_SECONDS, check=False
    )
    return child.returncode == 0


def _hf_config(handed_over: Any) -> Any:
    """The configuration of the model that the workers will serve; None where it is not told."""
    for part in handed_over if isinstance(handed_over, tuple) else ():
        if getattr(part, "model_path", None):
            return hf_config(part)
    return None


def hf_config(server_args: Any) -> Any:
    """The configuration of the model that a server is asked to serve, as SGLang reads it."""
    reader = importlib.import_module("sglang.srt.utils.hf_transformers_utils")
    return reader.get_config(
        server_args.model_path,
        trust_remote_code=server_args.trust_remote_code,
        revision=getattr(server_args, "revision", None),
    )
