"""What the package raises while SGLang starts. Requests are refused with a plain ``ValueError``."""

from __future__ import annotations


class DeepEyesPatchError(RuntimeError):
    """The package was switched on and cannot do its work; SGLang must not start without it."""


class SettingsError(DeepEyesPatchError):
    """An environment variable of ours holds a value that means nothing, or was set too late."""


class IncompatibleSGLangError(DeepEyesPatchError):
    """The installed SGLang does not have the seams that a repair needs."""
