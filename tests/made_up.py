"""Text of made-up modules of SGLang's that have every function which the table of seams wants in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deepeyes_patch.seams import table
from deepeyes_patch.seams.facts import COMMUNICATOR, GETTERS, TARGET, UNREDUCED, asks_by_no_known_getter
from deepeyes_patch.seams.rows import Seam

# Names for the classes that a row describes, by the last word of the description.
_CLASSES = {
    "process_mm_data_async": "QwenVLImageProcessor",
    "...ForConditionalGeneration": "MadeUpForConditionalGeneration",
    "_try_recv_mm_data": "WaitingRequest",
    "_recv_mm_data": "Receiver",
}


def function(row: Seam, extra: str = "", body: str = "return 'made up'") -> str:
    """The definition of a row's function, with one more parameter where ``extra`` names one."""
    options = [f"{name}=None" for name in row.arguments if name not in ("self", "kwargs")]
    options += [f"{extra}=None"] * bool(extra) + ["**kwargs"] * ("kwargs" in row.arguments)
    own = ["self"] * (row.owner is not None)
    return f"{'async ' * bool(row.coroutine)}def {row.name}({', '.join(own + options)}):\n    {body}\n"


def module(rows: Sequence[Seam], extra: str = "", body: str = "return 'made up'") -> str:
    """The text of a module that has the functions of these rows."""
    classes: dict[str | None, dict[str, str]] = {None: {}}
    for row in rows:
        last = None if row.owner is None else row.owner.shown.split()[-1]
        owner = _CLASSES.get(last or "", last)
        inside = body.replace("return", "_ =") if row.name == "__init__" else body
        if row.demand is asks_by_no_known_getter:
            inside = "".join(f"{getter}.{TARGET} = " for getter in GETTERS) + f"None; {body}"
        if row.module == COMMUNICATOR:
            inside = f"_ = forward_batch and forward_batch.{UNREDUCED}; {body}"
        classes.setdefault(owner, {})[row.name] = function(row, extra, inside)
    text = "".join(classes.pop(None).values())
    for name, functions in classes.items():
        lines = "".join(functions.values()).rstrip("\n").replace("\n", "\n    ")
        text += f"class {name}:\n    {lines}\n"
    return text


def rows_of(name: str) -> list[Seam]:
    """The rows of all repairs in a module of SGLang's."""
    return [row for row in table.SEAMS if row.module == name]


def write(folder: Path, *names: str, before: str = "") -> Path:
    """Write modules of a made-up SGLang below ``folder``, with a text before their functions."""
    for name in names:
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
        path.write_text(before + module(rows_of(name)), encoding="utf-8")
    return folder
