"""``install`` and ``uninstall``.

Besides our own modules and the standard library, only wrapt is imported here. An import of the top of
``sglang`` must not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from deepeyes_patch import bootstrap, settings
from deepeyes_patch.errors import SettingsError
from deepeyes_patch.mrope import building
from deepeyes_patch.observe import outcomes
from deepeyes_patch.seams import wrapping
from deepeyes_patch.settings import DEFAULT, REPAIRS, SWITCH
from deepeyes_patch.startup import again, hooks, integrity

# The switch as it was before `install`.
_environment: dict[str, str] = {}


def install(repairs: Iterable[str] | None = None) -> None:
    """Switch repairs on in this process, and in the children that it starts from now on.

    Modules of SGLang that are imported already are patched at once, the others when they are imported.
    Installing again adds repairs; what is patched already stays as it is.

    Parameters
    ----------
    repairs:
        Names from `deepeyes_patch.settings.REPAIRS`; those that the environment selects are added.
        ``None``: the repairs that the environment selects. If no variable is set, these are
        `deepeyes_patch.settings.DEFAULT`; if the environment says off, there are none.

    Raises
    ------
    SettingsError
        A repair is unknown, ``video`` comes without ``processor``, or an environment variable has an unknown
        value.
    DeepEyesPatchError
        wrapt is too old, the installation is damaged, or this process has built a model already that keeps
        SGLang's own ropes.
    """
    selected = settings.read(os.environ)
    if repairs is None:
        wanted = selected.repairs if selected.source else DEFAULT
    else:
        wanted = frozenset([repairs] if isinstance(repairs, str) else repairs) | selected.repairs
        unknown = sorted(wanted.difference(REPAIRS))
        if unknown:
            raise SettingsError(f"unknown repairs {unknown}; there are {', '.join(REPAIRS)}")
        settings.require_base(wanted | outcomes.wanted(), f"install({sorted(wanted)})")
    if not wanted:
        return
    integrity.require_wrapt()
    integrity.require_all_modules()
    with hooks.lock:
        if "mrope" in wanted - outcomes.wanted():
            building.refuse_built()
        if not outcomes.wanted():
            _environment.clear()
            _environment.update({SWITCH: os.environ[SWITCH]} if SWITCH in os.environ else {})
        outcomes.want(wanted)
        os.environ[SWITCH] = ",".join(sorted(outcomes.wanted()))
        bootstrap.mark_watching()
        for repair in sorted(wanted):
            hooks.register(repair)
        outcomes.publish()


def uninstall() -> None:
    """Put every original back in this process and leave later imports unpatched.

    Children started from now on run without the repairs: the switch in the environment gets back its value
    from before `install`, or ``off`` if that value would switch repairs on. Requests that are under way may
    fail: stock SGLang does the rest of their work.

    Raises
    ------
    RuntimeError
        Another package has wrapped one of our wrappers; nothing is changed then.
    """
    with hooks.lock:
        wrapping.restore_all()
        again.finder.forget()
        outcomes.forget()
        os.environ.pop(SWITCH, None)
        os.environ.update(_environment)
        if settings.read(os.environ).repairs:
            os.environ[SWITCH] = "off"
