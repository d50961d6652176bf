"""A start that we stop must end, and be heard, whatever started SGLang.

Trainers start SGLang as ``multiprocessing.Process(target=launch_server)``. If the target raises there, Python
first waits for all children that the process has started, and only then prints the traceback. The scheduler
is such a child, and nobody has told it to end: no line in any log, and the start never ends. SGLang's own
main program kills its children at that point, so we do that, too.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from deepeyes_patch.errors import DeepEyesPatchError
from deepeyes_patch.seams.wrapping import Call

logger = logging.getLogger("deepeyes_patch")


def heard(stop: Callable[[Call], Any]) -> Callable[[Call], Any]:
    """Make a wrapper that stops SGLang end the start: see above."""

    @functools.wraps(stop)
    def stopping(call: Call) -> Any:
        try:
            return stop(call)
        except DeepEyesPatchError as error:
            if not error.heard:
                error.heard = True
                logger.critical("%s", error)
                _end_children()
            raise

    return stopping


def _end_children() -> None:
    """End them as SGLang's own main program does, with its function. SGLang has loaded both modules."""
    multiprocessing: Any = sys.modules.get("multiprocessing")
    utils: Any = sys.modules.get("sglang.srt.utils")
    if multiprocessing is not None and multiprocessing.parent_process() is not None and utils is not None:
        utils.kill_process_tree(os.getpid(), include_parent=False)
