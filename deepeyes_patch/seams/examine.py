"""What the installed SGLang offers, seam by seam, and the message when that is not enough.

Whether a repair fits is decided by what is there. Version numbers appear in messages only.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from deepeyes_patch.errors import IncompatibleSGLangError

TESTED = "0.5.3 to 0.5.23, every release"


@dataclass(frozen=True)
class Seam:
    """A function of SGLang's that a repair wraps.

    ``parameters`` are the names by which the wrapper finds its arguments. An optional seam came or
    went with a release; where it is absent, the code it belongs to is absent too.
    """

    name: str
    parameters: tuple[str, ...]
    coroutine: bool | None = None
    optional: bool = False


@dataclass(frozen=True)
class Finding:
    """What stands where a seam was looked for. ``problem`` is ``None`` when the seam is usable."""

    seam: Seam
    found: str
    problem: str | None
    present: bool

    def __str__(self) -> str:
        verdict = "ok" if self.problem is None else self.problem
        return f"{self.seam.name}({', '.join(self.seam.parameters)}): found {self.found}: {verdict}"


def examine(owner: Any, seams: Iterable[Seam], home: str = "sglang.") -> list[Finding]:
    """Look for ``seams`` on ``owner`` (a class or a module).

    A function that does not come from a module below ``home`` was put there by somebody else; wrapping
    it would hand our repair over to code that we know nothing about.
    """
    return [_examine(owner, seam, home) for seam in seams]


def require(owner: Any, seams: Iterable[Seam], repair: str, switch: str) -> list[Finding]:
    """The findings for ``seams``, if a repair can work with all of them.

    Raises
    ------
    IncompatibleSGLangError
        A seam is missing that is not optional, or has another shape.
    """
    findings = examine(owner, seams)
    problems = [str(finding) for finding in findings if finding.problem is not None]
    if problems:
        raise incompatible(repair, switch, problems, [str(finding) for finding in findings])
    return findings


def _examine(owner: Any, seam: Seam, home: str) -> Finding:
    try:
        static = inspect.getattr_static(owner, seam.name)
    except AttributeError:
        problem = None if seam.optional else "missing"
        return Finding(seam, "nothing", problem, present=False)
    function = static.__func__ if isinstance(static, (staticmethod, classmethod)) else static
    if not callable(function):
        return Finding(seam, repr(function), "not a function", present=True)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return Finding(seam, repr(function), "its signature cannot be read", present=True)
    # Without annotations: a report should be readable.
    found = (
        f"{origin(function)}({', '.join(str(p.replace(annotation=p.empty)) for p in parameters.values())})"
    )
    problem = None
    absent = [name for name in seam.parameters if name not in parameters]
    if not (getattr(function, "__module__", None) or "").startswith(home):
        problem = "another package has replaced it"
    elif getattr(function, "__isabstractmethod__", False):
        problem = "abstract, and nothing implements it"
    elif absent:
        problem = f"it takes no {' and no '.join(absent)}"
    elif seam.coroutine is not None and inspect.iscoroutinefunction(function) != seam.coroutine:
        problem = "it must be async" if seam.coroutine else "it must not be async"
    return Finding(seam, found, problem, present=True)


def origin(function: Any) -> str:
    """``module.qualified_name`` of a function, as far as it has them."""
    module = getattr(function, "__module__", None) or "an unknown module"
    name = getattr(function, "__qualname__", None) or repr(function)
    return f"{module}.{name}"


def sglang_version() -> str:
    """The version that the imported ``sglang`` gives itself, or else that of its distribution.

    From 0.5.7 on SGLang may ask for the version of a distribution called ``sglang``, and calls itself
    0.0.0.dev0 where there is none: in a source tree, and in rebuilds that carry another name.
    """
    own = str(getattr(sys.modules.get("sglang"), "__version__", "of unknown version"))
    if own.startswith("0.0.0") or own == "of unknown version":
        versions = [version for _, version in _distributions()]
        return versions[0] if len(versions) == 1 else own
    return own


def sglang_description() -> str:
    """Version, distribution and place of the imported SGLang, for messages."""
    module = sys.modules.get("sglang")
    place = getattr(module, "__file__", None) or "an unknown place"
    names = [f"distribution {name} {version}" for name, version in _distributions()]
    return f"SGLang {sglang_version()} ({', '.join(names) or 'no distribution: a source tree'}, {place})"


def _distributions() -> list[tuple[str, str]]:
    """(name, version) of those that provide the module ``sglang``, whatever they are called."""
    # The backport reads distributions without top_level.txt on Python 3.10, which the standard
    # library's own does not.
    import importlib_metadata

    names = importlib_metadata.packages_distributions().get("sglang") or ()
    return [(name, importlib_metadata.version(name)) for name in sorted(set(names))]


def incompatible(
    repair: str, switch: str, problems: Sequence[str], details: Sequence[str] = ()
) -> IncompatibleSGLangError:
    """Build the error that stops SGLang.

    Parameters
    ----------
    repair, switch:
        Which repair cannot be applied, and the variable that asked for it.
    problems:
        What is wrong, one line each.
    details:
        Everything that was looked for and what was found.
    """
    lines = [
        f"deepeyes-patch cannot apply its {repair!r} repair to {sglang_description()}.",
        *(f"  problem: {problem}" for problem in problems),
        *(f"  looked for {detail}" for detail in details),
        f"  tested with SGLang {TESTED}.",
        f"Either switch the repair off ({switch}=off, or {switch} without {repair!r}) and serve "
        f"unrepaired, or use a tested SGLang; please report this message in full.",
    ]
    return IncompatibleSGLangError("\n".join(lines))


def classes_defined_in(module: ModuleType, accept: Callable[[type], bool] = lambda cls: True) -> list[type]:
    """The classes whose home is ``module``, in order of definition."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and accept(value)
    ]
