"""The environment variables, and what they switch on.

``DEEPEYES_PATCH``
    ``1``, ``true``, ``on``, ``all``: ``processor`` and ``mrope``. ``processor``, ``mrope``, ``video``,
    ``sampling``, ``deepstack`` or a list of them, also with ``1``: the named repairs. Commas, blanks and plus
    signs separate names. ``video`` changes how SGLang samples the frames of videos, and ``sampling`` forbids
    the policy to sample placeholders, so they are on only if they are named; they need ``processor``.
    ``deepstack`` has never run on the GPUs that need it, so it is on only if it is named. ``0``, ``false``,
    ``off``, blanks: none. Unset or empty: the next variable decides.
``RELAX_DEEPEYES_QWEN_VL_PATCH``
    ``1``, ``true``, ``on``: the ``processor`` repair, so that recipes written for Relax work
    unchanged. ``0``, ``false``, ``off``, unset or empty: none.

Case and surrounding blanks do not matter. Both are read once, when the interpreter starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from deepeyes_patch import OFF_VALUES
from deepeyes_patch.errors import SettingsError

SWITCH = "DEEPEYES_PATCH"
RELAX_SWITCH = "RELAX_DEEPEYES_QWEN_VL_PATCH"
# Relax's own patch: the flag that switches it on, and what it looks for on the class to stand aside.
RELAX_FLAG = "--deepeyes-qwen-vl-patch"
RELAX_MARK = "_relax_deepeyes_patched"
REPAIRS = ("processor", "mrope", "video", "sampling", "deepstack")
# The repairs that ``1`` selects. Any other repair is on only if it is named.
DEFAULT = frozenset({"processor", "mrope"})

_ON = frozenset({"1", "true", "on"})
_ALL = _ON | {"all"}


@dataclass(frozen=True)
class Settings:
    """The selected repairs, and the variable that selects them (``None``: no variable is set)."""

    repairs: frozenset[str]
    source: str | None


def read(environ: Mapping[str, str]) -> Settings:
    """Parse the two variables.

    Raises
    ------
    SettingsError
        A variable has none of the values above. The message names the variable, its value and the valid
        values.
    """
    # A variable that holds only blanks counts as set, as in the .pth line.
    if value := environ.get(SWITCH):
        return Settings(_repairs(value.strip().lower(), value), SWITCH)
    if value := environ.get(RELAX_SWITCH):
        return Settings(_relax_repairs(value.strip().lower(), value), RELAX_SWITCH)
    return Settings(frozenset(), None)


def _repairs(value: str, original: str) -> frozenset[str]:
    if value in OFF_VALUES:
        return frozenset()
    if value in _ALL:
        return DEFAULT
    names = set(value.replace(",", " ").replace("+", " ").split()) or {""}
    if names & _ALL:
        names = (names - _ALL) | DEFAULT
    unknown = sorted(names.difference(REPAIRS))
    if unknown:
        raise SettingsError(
            f"{SWITCH}={original!r} is not understood: {', '.join(map(repr, unknown))} is neither a "
            f"repair nor a switch. Valid: 1, true, on or all; a list of "
            f"{', '.join(REPAIRS)}, separated by commas, blanks or plus signs; 0, false, off or empty to "
            f"switch the package off."
        )
    require_base(names, f"{SWITCH}={original!r}")
    return frozenset(names)


def require_base(repairs: Collection[str], source: str) -> None:
    """Refuse ``video`` or ``sampling`` without ``processor``, which both need.

    Raises
    ------
    SettingsError
        ``repairs`` holds one of them and not ``processor``. The message begins with ``source``.
    """
    for repair in ("video", "sampling"):
        if repair in repairs and "processor" not in repairs:
            raise SettingsError(f"{source}: {repair!r} stands on 'processor'; name both")


def _relax_repairs(value: str, original: str) -> frozenset[str]:
    if value in OFF_VALUES:
        return frozenset()
    if value in _ON:
        return frozenset({"processor"})
    raise SettingsError(
        f"{RELAX_SWITCH}={original!r} is not understood. Valid: 1, true or on; 0, false, off or "
        f"empty. {SWITCH} selects repairs by name."
    )
