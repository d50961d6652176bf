"""Lets `examine` look at SGLang's source files, without importing them.

This module understands what finding seams needs: definitions and imports of a module (also below ``if`` and
``try``), and methods of a class or of the classes that it derives from.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deepeyes_patch.seams.rows import Function


@dataclass(frozen=True)
class Module:
    """A parsed module; ``is_package`` decides what its relative imports mean."""

    name: str
    path: Path
    tree: ast.Module
    is_package: bool


@dataclass(frozen=True)
class Definition:
    """A class or function, and the module that defines it."""

    module: Module
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class SourceView:
    """The modules of one package, parsed on demand; see `rows.View`.

    Parameters
    ----------
    folder:
        The package's own folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """A module by its dotted name; ``None`` if it is not there or cannot be parsed."""
        if name not in self._modules:
            self._modules[name] = self._parse(name)
        return self._modules[name]

    def _parse(self, name: str) -> Module | None:
        package, *parts = name.split(".")
        if package != self._folder.name:
            return None
        place = self._folder.joinpath(*parts)
        for path, is_package in ((place / "__init__.py", True), (place.with_suffix(".py"), False)):
            try:
                return Module(name, path, ast.parse(path.read_bytes()), is_package)
            except (OSError, SyntaxError, ValueError):
                continue
        return None

    def find(self, module: Module | None, name: str) -> Definition | None:
        """The definition of ``name`` in a module, or in the module that it is imported from."""
        return self._find(module, name, set())

    def _find(self, module: Module | None, name: str, seen: set[tuple[str, str]]) -> Definition | None:
        if module is None or (module.name, name) in seen:
            return None
        seen.add((module.name, name))
        for statement in _statements(module.tree.body):
            found = None
            if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                if statement.name == name:
                    return Definition(module, statement)
            elif isinstance(statement, ast.ImportFrom):
                found = self._find_imported(module, statement, name, seen)
            elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
                targets = [target.id for target in statement.targets if isinstance(target, ast.Name)]
                if name in targets:
                    found = self._find(module, statement.value.id, seen)
            if found is not None:
                return found
        return None

    def _find_imported(
        self, module: Module, statement: ast.ImportFrom, name: str, seen: set[tuple[str, str]]
    ) -> Definition | None:
        for alias in statement.names:
            if alias.name == "*" or (alias.asname or alias.name) == name:
                source = self.module(_origin(module, statement))
                found = self._find(source, name if alias.name == "*" else alias.name, seen)
                if found is not None:
                    return found
        return None

    def _own_member(self, owner: Definition, name: str) -> Definition | None:
        """A method that the class itself defines."""
        if not isinstance(owner.node, ast.ClassDef):
            return None
        for statement in _statements(owner.node.body):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name == name:
                return Definition(owner.module, statement)
        return None

    def _member(self, owner: Definition, name: str) -> Definition | None:
        """A method of a class: its own, or one inherited from a class of this package."""
        if not isinstance(owner.node, ast.ClassDef):
            return None
        if (own := self._own_member(owner, name)) is not None:
            return own
        for base in owner.node.bases:
            found = self.find(owner.module, base.id) if isinstance(base, ast.Name) else None
            inherited = self._member(found, name) if found is not None else None
            if inherited is not None:
                return inherited
        return None

    # --- the methods of `rows.View`

    def classes(self, module: Module) -> list[tuple[str, Definition]]:
        """The classes that a module defines, in order, by name."""
        nodes = _statements(module.tree.body)
        return [(node.name, Definition(module, node)) for node in nodes if isinstance(node, ast.ClassDef)]

    def named(self, module: Module, name: str) -> Definition | None:
        """The class that a module defines or imports under this name."""
        found = self.find(module, name)
        return found if found is not None and isinstance(found.node, ast.ClassDef) else None

    def defines(self, cls: Definition, name: str) -> bool:
        """Whether the body of a class itself defines this name."""
        return self._own_member(cls, name) is not None

    def uses(self, cls: Definition) -> frozenset[str]:
        """The global names and attributes in the body of a class."""
        return _used(cls.node)

    def function(self, owner: Module | Definition, name: str) -> Function | None:
        """The function of a module or class, its own or an inherited or imported one."""
        found = self.find(owner, name) if isinstance(owner, Module) else self._member(owner, name)
        if found is None:
            return None
        file = str(found.module.path)
        if isinstance(found.node, ast.ClassDef):
            return Function(f"class {found.node.name}", found.module.name, "not a function", file=file)
        parameters = _parameters(found.node)
        decorators = {ast.unparse(d).rpartition(".")[2] for d in found.node.decorator_list}
        return Function(
            shown=f"{found.module.name}.{found.node.name}({', '.join(parameters)})",
            home=found.module.name,
            parameters=tuple(parameters),
            is_coroutine=isinstance(found.node, ast.AsyncFunctionDef),
            is_abstract="abstractmethod" in decorators,
            uses=_used(found.node),
            file=file,
        )


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The names of a function's parameters, in order."""
    parts = function.args
    rest = [argument for argument in (parts.vararg, parts.kwarg) if argument is not None]
    return [a.arg for a in [*parts.posonlyargs, *parts.args, *parts.kwonlyargs, *rest]]


def _used(tree: ast.AST) -> frozenset[str]:
    """The names and attributes in a piece of code."""
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return frozenset(names.union(node.attr for node in nodes if isinstance(node, ast.Attribute)))


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block, and of the ``if``, ``try`` and ``with`` blocks in it."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            yield from _statements(statement.body)
            yield from _statements(getattr(statement, "orelse", []))
            for handler in getattr(statement, "handlers", []):
                yield from _statements(handler.body)


def _origin(module: Module, statement: ast.ImportFrom) -> str:
    """The full name of the module that an import names."""
    if not statement.level:
        return statement.module or ""
    parts = module.name.split(".")
    up = statement.level - 1 if module.is_package else statement.level
    parts = parts[: len(parts) - up]
    return ".".join([*parts, *([statement.module] if statement.module else [])])
