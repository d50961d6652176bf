"""How the layers of the package hang together."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

import deepeyes_patch
from deepeyes_patch.seams import table
from deepeyes_patch.startup import integrity
from tests import graph
from tests.interpreters import CHECKOUT, clean_environ

LONGEST = 300
PURE = [
    *(name for name in graph.modules() if name.startswith("ids.")),
    *("seams.rows", "seams.table", "seams.source", "seams.live", "seams.examine"),
    *("startup.stops", "startup.installer", "startup.activation", "mrope.building", "mrope.lanes"),
]


# --- the import graph ---------------------------------------------------------------------------------


def test_no_circle_among_modules() -> None:
    assert graph.circle(graph.imports()) == []


def test_no_circle_among_layers() -> None:
    assert graph.circle(graph.layers(graph.imports())) == []


def test_no_arrow_upwards() -> None:
    upwards = [
        f"{name} imports {target}"
        for name, targets in graph.imports().items()
        for target in targets
        if graph.level(target) < graph.level(name)
    ]
    assert upwards == []


def test_the_package_states_the_order_of_the_layers() -> None:
    assert deepeyes_patch.__doc__
    order = r"Imports go downwards only, in this order \(.*?\):(.*?\.) Each"
    (stated,) = re.findall(order, deepeyes_patch.__doc__, re.DOTALL)
    layers = re.findall(r"``([\w.]+)``", stated)
    assert layers == [name for names in graph.LEVELS for name in names], (
        "graph.LEVELS is the order that the tests hold"
    )


@pytest.mark.parametrize("folder", sorted({*integrity.MODULES, "cli", "verification"}))
def test_a_layer_says_what_its_modules_do(folder: str) -> None:
    path = graph.modules()[folder]
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    modules = {name.split(".")[1] for name in graph.modules() if name.startswith(f"{folder}.")}
    assert set(re.findall(r"^``(\w+)`` ", docstring, re.MULTILINE)) == modules


def test_a_circle_and_an_arrow_upwards_would_be_found() -> None:
    assert graph.circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    tree = ast.parse(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from deepeyes_patch.startup import hooks\n"
        "def inner():\n    from deepeyes_patch.seams import table\n"
        "from deepeyes_patch import settings, OFF_VALUES\n"
        "import deepeyes_patch.observe.record, os\n"
    )
    assert set(graph._imported(tree)) == {"seams.table", "settings", "", "observe.record"}
    assert graph.level("cli.main") < graph.level("request.begin") < graph.level("ids.spans")


def test_the_graph_is_printed() -> None:
    for option, words in {
        "": "request.begin: errors, ids.request",
        "--mermaid": "flowchart TD\n",
        "--dot": "digraph layers {",
    }.items():
        done = subprocess.run(
            [sys.executable, "-m", "tests.graph", *option.split()],
            cwd=CHECKOUT,
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert words in done.stdout


# --- files and what they import -----------------------------------------------------------------------


@pytest.mark.parametrize("name", graph.modules())
def test_no_long_file(name: str) -> None:
    lines = len(graph.modules()[name].read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{name} has {lines} lines"


def test_the_modules_that_must_be_there_are_the_files_on_disk() -> None:
    found: dict[str, list[str]] = {}
    for name in graph.modules():
        layer, _, module = name.partition(".")
        if module and layer not in ("cli", "verification"):
            found.setdefault(layer, []).append(module)
    assert {layer: sorted(names) for layer, names in integrity.MODULES.items()} == found


HEAVY = ("torch", "sglang", "transformers", "triton")


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_neither_torch_nor_sglang(name: str) -> None:
    """Also none that a function of theirs imports, directly or through a module of ours."""
    way, waiting = {name}, [name]
    while waiting:
        for target in graph.imports()[waiting.pop()] - way:
            way.add(target)
            waiting.append(target)
    for module in way:
        tree = ast.parse(graph.modules()[module].read_text(encoding="utf-8"))
        for node in graph._running(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {top.partition(".")[0] for top in names}.isdisjoint(HEAVY), module


IMPORT_ALL = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(f"deepeyes_patch.{name}")
print(*sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[1].split(","))))
"""


def loaded(modules: list[str], watched: tuple[str, ...]) -> list[str]:
    """Which of some packages a fresh interpreter has loaded after it imported modules of ours."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, ",".join(watched), *modules],
        cwd=CHECKOUT,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_pure_modules_load_neither_torch_nor_sglang() -> None:
    assert loaded(PURE, HEAVY) == []
    assert loaded(["request.begin"], HEAVY) == ["torch"], "the environment has a torch that could show"


def test_what_sglangs_first_import_loads() -> None:
    """Whoever imports the top of ``sglang`` with the switch on pays for wrapt, and not for NumPy."""
    assert loaded(["startup.activation", "startup.installer"], (*HEAVY, "numpy", "wrapt")) == ["wrapt"]


# --- names in the table -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference", sorted({name for row in table.SEAMS for name in (row.wrapper, row.door) if name})
)
def test_the_wrappers_that_the_table_names_are_there(reference: str) -> None:
    function = integrity.load(reference)
    assert callable(function)
    assert function.__module__ == f"deepeyes_patch.{reference.partition(':')[0]}"
    assert function.__doc__, "it says which function of SGLang's it is put around"
