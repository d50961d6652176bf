"""Which SGLang this process has imported: its version, its distribution and its place. For messages only."""

from __future__ import annotations

import functools
import sys

TESTED = "0.5.3 to 0.5.23, every release"


def version() -> str:
    """The version that the imported ``sglang`` gives itself, or else that of its distribution.

    From 0.5.7 on, SGLang asks for the version of a distribution called ``sglang``. Where there is none, as in
    a source tree or in a rebuild under another name, it calls itself 0.0.0.dev0.
    """
    own = str(getattr(sys.modules.get("sglang"), "__version__", "of unknown version"))
    if own.startswith("0.0.0") or own == "of unknown version":
        versions = [version for _, version in _distributions(_place())]
        return versions[0] if len(versions) == 1 else own
    return own


def description() -> str:
    """Version, distribution and place of the imported SGLang."""
    names = [f"distribution {name} {version}" for name, version in _distributions(_place())]
    return f"SGLang {version()} ({', '.join(names) or 'no distribution: a source tree'}, {_place()})"


def _place() -> str:
    return getattr(sys.modules.get("sglang"), "__file__", None) or "an unknown place"


@functools.lru_cache(maxsize=8)  # it reads the metadata of every distribution: more than a second of CPU time
def _distributions(place: str) -> tuple[tuple[str, str], ...]:
    """(name, version) of the distributions that provide the module ``sglang``, whatever they are called.

    ``place`` is where the imported SGLang lies: the answer is kept for it.
    """
    if sys.version_info >= (3, 11):
        from importlib import metadata
    else:
        # Python 3.10's own overlooks distributions without top_level.txt.
        import importlib_metadata as metadata

    names = metadata.packages_distributions().get("sglang") or ()
    return tuple((name, metadata.version(name)) for name in sorted(set(names)))
