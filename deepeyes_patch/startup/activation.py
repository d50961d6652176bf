"""Reads the switch when ``sglang`` is imported for the first time, and installs what it selects."""

from __future__ import annotations

import logging
import os

from deepeyes_patch import bootstrap, settings
from deepeyes_patch.errors import DeepEyesPatchError, SettingsError
from deepeyes_patch.settings import RELAX_SWITCH, SWITCH


def activate() -> None:
    """Install what the environment selects.

    Raises
    ------
    SettingsError
        Our variable has an unknown value, or was set after the parent of this process had started.
    DeepEyesPatchError
        This package or wrapt cannot be loaded.
    """
    selected = settings.read(os.environ)
    if not selected.repairs:
        return
    if bootstrap.is_child_of_unpatched_parent():
        if selected.source == RELAX_SWITCH:
            _leave_to_relax()
            return
        # The tokenizer manager lives in the parent and the models in its children. A script that sets the
        # variable after its interpreter started would get the repairs only in the children.
        raise SettingsError(
            f"{selected.source} was set after the parent of this process had started, so the parent runs "
            f"without the repairs. Set it before Python starts, or call deepeyes_patch.install() in the "
            f"parent before it starts other processes."
        )
    try:
        from deepeyes_patch.startup import installer
    except Exception as error:  # a damaged wrapt can raise anything
        raise DeepEyesPatchError(bootstrap.UNLOADABLE.format(error=error)) from error
    installer.install(selected.repairs)


def _leave_to_relax() -> None:
    """Relax's engine sets its own variable in a running actor, for its own patch. Nobody asked for ours."""
    bootstrap.unmark_watching()
    logging.getLogger("deepeyes_patch").warning(
        "deepeyes-patch is off in process %d: %s was set after the parent of this process had started, as "
        "Relax does for its own patch, which serves then. To have the repairs of deepeyes-patch, set %s=1 "
        "before Python starts",
        os.getpid(),
        RELAX_SWITCH,
        SWITCH,
    )
