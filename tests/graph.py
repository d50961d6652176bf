"""Print the import graph of ``deepeyes_patch``, made from the code: ``python -m tests.graph``.

Without an option: every layer, and what each of its modules imports of other modules of ours. Imports inside
functions count; imports for type checkers alone do not. What is handed over by name is listed apart, because
those are no imports: public names, the module that ``bootstrap`` activates, programs that are started as
processes of their own, and the wrappers that the table of seams names.

With ``--mermaid`` or ``--dot``: one drawing of the layers, for ``docs/*/design.md``. A solid arrow is an
import; it is left out where a longer way of arrows leads to the same layer. A dotted arrow is a hand-over by
name.
"""

from __future__ import annotations

import argparse
import ast
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from deepeyes_patch.seams import table

PACKAGE = Path(__file__).resolve().parent.parent / "deepeyes_patch"
NAME = "deepeyes_patch"

# From top to bottom. Imports go downwards only; the docstring of the package says so too.
LEVELS = (
    ("cli", "verification"),
    ("startup",),
    ("request", "mrope"),
    ("seams",),
    ("observe", "ids"),
    ("settings", "errors", "bootstrap"),
)
BASE = LEVELS[-1]
_LAYER_OF = {"": "bootstrap", "__main__": "cli"}  # `__init__.py` belongs to bootstrap, which it starts

Graph = dict[str, set[str]]


@functools.cache
def modules() -> dict[str, Path]:
    """Every module by its name below ``deepeyes_patch``; a layer's own file has the layer's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        *folders, last = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join([*folders, last] if last != "__init__" else folders)] = path
    return found


def layer(module: str) -> str:
    """The layer of a module; each module of the lowest level is a layer of its own."""
    return _LAYER_OF.get(module, module.partition(".")[0])


def level(module: str) -> int:
    """0 is the top."""
    (found,) = (number for number, layers in enumerate(LEVELS) if layer(module) in layers)
    return found


@functools.cache
def imports() -> Mapping[str, frozenset[str]]:
    """The modules of ours that each module imports."""
    return {
        name: frozenset(_imported(ast.parse(path.read_text(encoding="utf-8")))) - {name}
        for name, path in modules().items()
    }


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in _running(tree):
        if isinstance(node, ast.Import):
            yield from (own for alias in node.names if (own := _own(alias.name)) is not None)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports of ours are absolute"
            if (origin := _own(node.module or "")) is not None:
                for alias in node.names:
                    inner = f"{origin}.{alias.name}".lstrip(".")
                    yield inner if inner in modules() else origin


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for statement in node.orelse:
                yield statement
                yield from _running(statement)
        else:
            yield node
            yield from _running(node)


def _own(name: str) -> str | None:
    """A module's name below the package; ``None`` if it is none of ours."""
    if name == NAME:
        return ""
    return name.removeprefix(f"{NAME}.") if name.startswith(f"{NAME}.") else None


@functools.cache
def hand_overs() -> Mapping[str, frozenset[str]]:
    """The modules of ours that each module names in a text, and does not import."""
    found: Graph = defaultdict(set)
    for name, path in modules().items():
        for node in _running(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                own = _own(node.value)
                if own and own in modules():
                    found[name].add(own)
    homes = next(
        node.value
        for node in ast.walk(ast.parse(modules()[""].read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES"
    )
    found[""].update(ast.literal_eval(homes).values())
    for seam in table.SEAMS:
        for reference in (seam.wrapper, seam.door):
            if reference is not None:  # `startup.hooks` loads it
                found["startup.hooks"].add(reference.partition(":")[0])
    return {name: frozenset(named) - {name} - imports()[name] for name, named in found.items()}


def layers(graph: Mapping[str, frozenset[str]]) -> Graph:
    """A graph of modules as a graph of layers."""
    found: Graph = defaultdict(set)
    for name, targets in graph.items():
        found[layer(name)] |= {layer(target) for target in targets} - {layer(name)}
    return found


def circle(graph: Mapping[str, frozenset[str] | set[str]]) -> list[str]:
    """Nodes that lead back to the first of them; ``[]`` if there is no circle."""
    done: set[str] = set()

    def visit(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node not in done:
            done.add(node)
            for target in sorted(graph.get(node, ())):
                if found := visit(target, [*way, node]):
                    return found
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])


def _reduced(graph: Graph) -> Graph:
    """Without the arrows to which a longer way of arrows is equal."""

    def reachable(node: str) -> set[str]:
        return {node}.union(*(reachable(target) for target in graph.get(node, ())))

    return {
        node: {
            target
            for target in targets
            if not any(target in reachable(other) for other in targets - {target})
        }
        for node, targets in graph.items()
    }


def _arrows() -> Iterator[tuple[str, str, bool]]:
    """(from, to, by name) between the layers of the drawing, from top to bottom."""
    order = [name for names in LEVELS for name in names]
    for graph, by_name in ((_reduced(layers(imports())), False), (layers(hand_overs()), True)):
        for name in order:
            for target in sorted(graph.get(name, ()), key=order.index):
                if not (by_name and target in BASE):  # public names that need no drawing
                    yield name, target, by_name


def mermaid() -> str:
    """The layers as a Mermaid flowchart, which GitHub draws."""
    lines = ["flowchart TD"]
    lines += [f"    {name}" for names in LEVELS for name in names]
    lines += [f"    {name} {'-.->' if by_name else '-->'} {target}" for name, target, by_name in _arrows()]
    return "\n".join(lines) + "\n"


def dot() -> str:
    """The layers as a Graphviz digraph."""
    lines = ["digraph layers {", "    node [shape=box]"]
    lines += [f"    {{ rank=same; {'; '.join(names)} }}" for names in LEVELS]
    lines += [
        f"    {name} -> {target}{' [style=dotted]' if by_name else ''}" for name, target, by_name in _arrows()
    ]
    return "\n".join([*lines, "}"]) + "\n"


def text() -> str:
    """Every layer, and what each of its modules imports."""
    lines = []
    for names in LEVELS:
        for name in names:
            lines.append(name)
            for module in modules():
                targets = sorted(imports()[module])
                if layer(module) == name and targets:
                    shown = module or "__init__"
                    lines.append(f"    {shown}: {', '.join(target or NAME for target in targets)}")
    lines.append("by name")
    for module, targets in sorted(hand_overs().items()):
        if targets:
            lines.append(f"    {module or NAME}: {', '.join(sorted(targets))}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--mermaid", action="store_true")
    form.add_argument("--dot", action="store_true")
    options = parser.parse_args()
    print(mermaid() if options.mermaid else dot() if options.dot else text(), end="")


if __name__ == "__main__":
    main()
