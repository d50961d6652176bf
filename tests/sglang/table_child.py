"""A child process that installs the repairs in this release's SGLang and writes what it finds there as JSON.

``python -m tests.sglang.table_child FILE``. A process of its own, because everything is to be installed
before SGLang is imported, and because functions of SGLang's are renamed here, one after the other.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tests.lab import flags, installed, qwen3_5

os.environ.update(flags.ENVIRONMENT)
os.environ["TORCHDYNAMO_DISABLE"] = "1"
if qwen3_5.home():
    os.environ["TRITON_INTERPRET"] = "1"

import deepeyes_patch
from deepeyes_patch.observe import outcomes
from deepeyes_patch.seams import table, table_deepstack, table_mrope
from deepeyes_patch.seams.examine import examine
from deepeyes_patch.seams.live import LiveView
from deepeyes_patch.seams.rows import Seam
from deepeyes_patch.seams.wrapping import SeamWrapper
from deepeyes_patch.settings import REPAIRS

OURS = str(Path(deepeyes_patch.__file__).parent)
MODULES = tuple(dict.fromkeys(seam.module for seam in table.SEAMS))
ROPE = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}

PLAIN = "plain"

# Where a function stands (module, class or "", name), and which wrapper it carries.
Place = tuple[str, str, str, str]


def main(file: Path) -> None:
    deepeyes_patch.install(REPAIRS)
    missing = import_modules()
    # Nothing of the table is imported before the repairs are installed.
    hooked, aliases = carriers()
    deepeyes_patch.uninstall()
    left, _ = carriers()
    answer: dict[str, Any] = {
        "missing": missing,
        "left after uninstall": left,
        "without CUDA": {"expected": expected(), "carriers": hooked, "aliases": aliases},
    }
    if qwen3_5.kernel() is not None:
        qwen3_5.module_as_on_cuda(setattr)
    built()
    answer["findings"] = [findings(seam) for seam in table.SEAMS]
    wanted = expected()
    deepeyes_patch.install(REPAIRS)
    hooked, aliases = carriers()
    answer["with CUDA"] = {"expected": wanted, "carriers": hooked, "aliases": aliases}
    answer["states"] = deepeyes_patch.status()
    deepeyes_patch.uninstall()
    # A repair that this release is too old for would stop every processor.
    usable = [repair for repair, words in answer["states"].items() if not words.startswith("failed")]
    answer["renamed"] = [renamed(seam, usable) for seam in table.SEAMS]
    file.write_text(json.dumps(answer))


def import_modules() -> dict[str, str]:
    """Import the modules of the table; return those that cannot be, with the package that they miss."""
    missing = {}
    importlib.import_module("sglang.srt.layers.quantization")  # as a server does, see `harness`
    for name in MODULES:
        if not installed.has_module(name):
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing[name] = str(error.name)
    return missing


# --- what carries a wrapper of ours -------------------------------------------------------------------


def wrapper_of(value: Any) -> str | None:
    """Which wrapper of ours a function carries outermost; ``None`` where it carries none.

    A `SeamWrapper`, told as ``module:function``, or a plain function whose code lies in our package, told as
    ``plain``.
    """
    if isinstance(value, SeamWrapper):
        wrapper = inspect.getclosurevars(value._self_wrapper).nonlocals["wrapper"]
        return f"{wrapper.__module__.removeprefix('deepeyes_patch.')}:{wrapper.__qualname__}"
    value = getattr(value, "__func__", value)
    code = value.__code__ if type(value) is FunctionType else None
    return PLAIN if code is not None and code.co_filename.startswith(OURS) else None


def carriers() -> tuple[list[Place], list[Place]]:
    """(functions that carry a wrapper, names under which other modules hold a function imported by name).

    Found by a walk through the functions and classes of all modules of SGLang's.
    """
    places: set[Place] = set()
    for module in modules_of_sglang():
        for name, value in list(vars(module).items()):
            if isinstance(value, type):
                for attribute, member in list(vars(value).items()):
                    if (wrapper := wrapper_of(member)) is not None:
                        places.add((value.__module__, value.__qualname__, attribute, wrapper))
            elif (wrapper := wrapper_of(value)) is not None:
                places.add((module.__name__, "", name, wrapper))
    by_name = {(seam.name, seam.wrapper): seam.module for seam in table.SEAMS if seam.imported_by_name}
    aliases = {place for place in places if by_name.get((place[2], place[3]), place[0]) != place[0]}
    return sorted(places - aliases), sorted(aliases)


def modules_of_sglang() -> list[ModuleType]:
    return [module for name, module in sorted(sys.modules.items()) if name.startswith("sglang.")]


def expected() -> list[Place]:
    """What has to carry a wrapper: the functions of the rows with a wrapper, as they stand here."""
    wanted = {
        (*place_of(finding.handle), seam.name, PLAIN if seam.traceable else seam.wrapper)
        for seam in table.SEAMS
        if seam.wrapper is not None
        for finding in examine(LiveView(), [seam])
        if finding.present
    }
    return sorted(wanted)


def place_of(handle: Any) -> tuple[str, str]:
    return (handle.__module__, handle.__qualname__) if isinstance(handle, type) else (handle.__name__, "")


# --- what the judge of imported modules says ----------------------------------------------------------


def findings(seam: Seam) -> list[tuple[str, bool, str | None]]:
    return [(f.owner, f.present, f.problem) for f in examine(LiveView(), [seam])]


# --- functions under another name ---------------------------------------------------------------------


def renamed(seam: Seam, usable: list[str]) -> dict[str, Any] | None:
    """What becomes of this release with the functions of one row renamed; ``None`` where it has none."""
    handles = [f.handle for f in examine(LiveView(), [seam]) if f.present]
    if not handles:
        return None
    original = inspect.unwrap(getattr(handles[0], seam.name))
    definitions, undo = [], []
    for handle in handles:
        for owner in definers(handle, seam.name):
            function = vars(owner)[seam.name]
            definitions.append(where(function))
            undo.append((owner, function))
            delattr(owner, seam.name)
            setattr(owner, f"{seam.name}_renamed", function)
    deepeyes_patch.install(usable)
    try:
        answer = {
            "function": getattr(original, "__qualname__", seam.name),
            "definitions": sorted(set(definitions)),
            "failures": {name: str(error) for name, error in outcomes._failures.items()},
            "states": deepeyes_patch.status(),
            "stopped": stopped(seam.repair),
        }
    finally:
        deepeyes_patch.uninstall()
        for owner, function in reversed(undo):
            delattr(owner, f"{seam.name}_renamed")
            setattr(owner, seam.name, function)
    return answer


def definers(handle: Any, name: str) -> Iterator[Any]:
    """The class whose body holds a method; or the modules that define or import a function."""
    if isinstance(handle, type):
        for cls in handle.__mro__:
            if name in vars(cls):
                yield cls
                return
        return
    function = vars(handle)[name]
    for module in modules_of_sglang():
        if vars(module).get(name) is function:
            yield module


def where(function: Any) -> tuple[str, int]:
    """(file, line) of a definition; a decorator's line where there is one."""
    function = getattr(function, "__func__", function)
    code = inspect.unwrap(function).__code__
    return code.co_filename, code.co_firstlineno


def stopped(repair: str) -> str | None:
    """What stops SGLang from serving a Qwen-VL model with this repair; ``None`` where nothing does."""
    try:
        if repair == "mrope":
            build_ropes()
        elif repair == "deepstack":
            build_model()
        else:
            construct()
    except deepeyes_patch.IncompatibleSGLangError as error:
        return str(error)
    return None


def construct() -> None:
    processor = built()
    type(processor)(processor.hf_config, processor.server_args, processor._processor, "default")


def built(made: list[Any] = []) -> Any:  # noqa: B006  # the one processor of this process
    """A processor, made while nothing is renamed or installed."""
    from tests.lab import processors

    if not made:
        made.append(processors.build("qwen3_vl"))
    return made[0]


def build_ropes() -> None:
    """What building a Qwen3-VL or Qwen3.5 model begins with, and the rope of its config."""
    for name in table_mrope.MODELS:
        for attribute, value in list(vars(sys.modules.get(name, sys)).items()):
            if isinstance(value, type) and attribute.endswith("ForConditionalGeneration"):
                attempt(lambda cls=value: cls.__init__(object.__new__(cls)))  # type: ignore[misc]
    for name in (table_mrope.ROTARY_EMBEDDING, table_mrope.QWEN3_5):
        build = getattr(sys.modules.get(name), "get_rope", None)
        if build is not None:
            built()
            attempt(lambda build=build: build(128, 128, 4096, 5e6, rope_scaling=dict(ROPE)))  # type: ignore[misc]


def build_model() -> None:
    """What building the text model of Qwen3-VL-MoE begins with."""
    cls = getattr(sys.modules.get(table_deepstack.MODEL), "Qwen3MoeLLMModel", None)
    if cls is not None:
        attempt(lambda: cls.__init__(object.__new__(cls)))


def attempt(work: Callable[[], Any]) -> None:
    """Errors that SGLang makes of too few arguments do not matter here."""
    try:
        work()
    except deepeyes_patch.IncompatibleSGLangError:
        raise
    except Exception:
        return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
