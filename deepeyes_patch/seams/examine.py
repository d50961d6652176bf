"""Check that the functions which a repair needs exist, in the shape that it needs.

It checks imported modules (`live`) and source files (`source`) by the same rows. Version numbers appear in
messages only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from deepeyes_patch.errors import IncompatibleSGLangError
from deepeyes_patch.observe import release
from deepeyes_patch.seams.rows import Function, Handle, Seam, View
from deepeyes_patch.settings import RELAX_FLAG, SWITCH

HOME = "sglang."


@dataclass(frozen=True)
class Finding:
    """What was found for a row.

    ``owner``: name of the class or module. ``handle``: the class or module itself, ``None`` if it is missing.
    ``found``: what was found, for messages. ``problem``: ``None`` if the function is usable.
    """

    seam: Seam
    owner: str
    handle: Handle | None
    found: str
    problem: str | None
    present: bool
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.seam}: found {self.found}: {self.problem or 'ok'}"


def examine(view: View, seams: Iterable[Seam]) -> list[Finding]:
    """Look for the functions of all rows that apply to this SGLang."""
    return [finding for seam in seams for finding in _examine_row(view, seam)]


def _examine_row(view: View, seam: Seam) -> Iterator[Finding]:
    module = view.module(seam.module)
    short_name = seam.module.rpartition(".")[2]
    if module is None:
        if not seam.optional_module:
            yield Finding(seam, short_name, None, "nothing", "missing", present=False)
        return
    if not seam.applies(view, module):
        return
    required = seam.required(view, module)
    if seam.owner is None:
        yield _judge(view, seam, short_name, module, required)
        return
    owners = seam.owner.find(view, module)
    if not owners and required:
        yield Finding(seam, seam.owner.shown, None, "nothing", "missing", present=False)
    for name, handle in owners:
        finding = _judge(view, seam, name, handle, required)
        if seam.owner.single and len(owners) > 1 and finding.problem is None:
            rivals = " and ".join(name for name, _ in owners)
            problem = f"{seam.module} should define one such class, and defines {rivals}"
            finding = Finding(seam, name, handle, finding.found, problem, present=True)
        yield finding


def _judge(view: View, seam: Seam, owner: str, handle: Handle, required: bool) -> Finding:
    function = view.function(handle, seam.name)
    if function is None:
        problem = "missing" if required else None
        return Finding(seam, owner, handle, "nothing", problem, present=False)
    problem = _problem(seam, function)
    return Finding(seam, owner, handle, function.shown, problem, present=True, file=function.file)


def _problem(seam: Seam, function: Function) -> str | None:
    if function.flaw is not None:
        return function.flaw
    if not function.home.startswith((HOME, f"{seam.module.partition('.')[0]}.")):
        # Another package put it there. Wrapping it would run the repair on code that nobody has tested.
        relax = (
            f" (Relax's own patch: drop its flag {RELAX_FLAG})" if function.home.startswith("relax.") else ""
        )
        return f"another package has replaced it{relax}"
    if function.is_abstract:
        return "abstract, and nothing implements it"
    if absent := [name for name in seam.arguments if name not in function.parameters]:
        return f"it takes no {' and no '.join(absent)}"
    if seam.coroutine is not None and function.is_coroutine != seam.coroutine:
        return "it must be async" if seam.coroutine else "it must not be async"
    return None if seam.demand is None else seam.demand(function)


def require(findings: Sequence[Finding], repair: str) -> None:
    """Stop if a repair cannot work with what was found.

    Raises
    ------
    IncompatibleSGLangError
        A required function is missing, or a function has another shape.
    """
    problems = [str(finding) for finding in findings if finding.problem is not None]
    if problems:
        raise incompatible(repair, problems, [str(finding) for finding in findings])


def incompatible(
    repair: str, problems: Sequence[str], details: Sequence[str] = ()
) -> IncompatibleSGLangError:
    """Build the error that stops SGLang.

    Parameters
    ----------
    repair:
        The repair that cannot be applied.
    problems:
        What is wrong, one line each.
    details:
        Everything that was looked for and what was found.
    """
    lines = [
        f"deepeyes-patch cannot apply its {repair!r} repair to {release.description()}.",
        *(f"  problem: {problem}" for problem in problems),
        *(f"  looked for {detail}" for detail in details),
        f"  tested with SGLang {release.TESTED}.",
        f"Either switch the repair off ({SWITCH}=off, or {SWITCH} without {repair!r}) and serve "
        f"unrepaired, or use a tested SGLang; please report this message in full.",
    ]
    return IncompatibleSGLangError("\n".join(lines))
