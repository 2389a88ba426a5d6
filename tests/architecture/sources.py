"""Reads a package without importing it: its modules, what each imports, and what its names mean."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """An import of a module: the module that imports it, and the line."""

    importer: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


@dataclass(frozen=True)
class Module:
    """A parsed file; `name` is its dotted name."""

    name: str
    path: Path

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its syntax tree: every law looks through them."""
        return list(ast.walk(ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))))

    @cached_property
    def names(self) -> dict[str, str]:
        """What its imported names stand for."""
        bound = {}
        for node in self.nodes:
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                if isinstance(node, ast.ImportFrom):
                    bound[alias.asname or alias.name] = f"{self.base(node)}.{alias.name}"
                else:
                    first = alias.name.partition(".")[0]
                    bound[alias.asname or first] = alias.name if alias.asname else first
        return bound

    def base(self, node: ast.ImportFrom) -> str:
        """The full name of what is imported from."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        return resolve_name("." * node.level + (node.module or ""), package)

    def meaning(self, node: ast.expr) -> str:
        """The full name of `a.b.c` where `a` is imported; empty for anything else."""
        head, _, rest = (dotted_name(node) or "").partition(".")
        target = self.names.get(head, "")
        return f"{target}.{rest}" if target and rest else target


@dataclass(frozen=True)
class Package:
    """All modules of one package by dotted name."""

    name: str
    modules: dict[str, Module]

    def owns(self, dotted: str) -> bool:
        """Whether a dotted name belongs to this package."""
        return dotted == self.name or dotted.startswith(self.name + ".")

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of every module, those inside functions too."""
        return [found for module in self.modules.values() for found in self._imports(module)]

    def _imports(self, module: Module) -> Iterator[Import]:
        for node in module.nodes:
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = module.base(node)
                members = [f"{base}.{alias.name}" for alias in node.names]
                # A submodule is meant itself; any other name comes from the module it is taken out of.
                targets = [member if member in self.modules else base for member in members]
            elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = (dotted_name(node.func) or "").rpartition(".")[2]
                if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                    targets = [node.args[0].value]
            for target in dict.fromkeys(targets):
                yield Import(module.name, node.lineno, target)


def read_package(folder: Path) -> Package:
    """Every Python file below `folder`, whose name is the package's name."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [folder.name, *path.relative_to(folder).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path)
    return Package(folder.name, modules)


def dotted_name(node: ast.expr) -> str | None:
    """`a.b.c` of a name, an attribute or a subscript of one; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Subscript):
        return dotted_name(node.value)
    if isinstance(node, ast.Attribute) and (owner := dotted_name(node.value)):
        return f"{owner}.{node.attr}"
    return None
