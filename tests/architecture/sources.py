"""Reads a package without importing it: its modules, what each imports, and what its names mean."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One imported module: by whom, on which line, and whether merely importing the importer runs it."""

    importer: str
    line: int
    target: str
    eager: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


@dataclass(frozen=True)
class Module:
    """A parsed file; `name` is its dotted name."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def package(self) -> str:
        """What a relative import starts from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Package:
    """All modules of one package by dotted name."""

    name: str
    modules: dict[str, Module]

    def __contains__(self, module: str) -> bool:
        return module in self.modules

    def owns(self, dotted: str) -> bool:
        """Whether a dotted name belongs to this package."""
        return dotted == self.name or dotted.startswith(self.name + ".")

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of every module, those inside functions too."""
        return [found for module in self.modules.values() for found in _imports(module, self)]

    @cached_property
    def names(self) -> dict[str, dict[str, str]]:
        """For each module, what its imported names stand for."""
        return {name: _bound_names(module) for name, module in self.modules.items()}

    def resolve(self, module: str, dotted: str) -> str:
        """What a name used in `module` is called where it is defined, followed through re-exports."""
        head, _, rest = dotted.partition(".")
        target = self.names[module].get(head, f"{module}.{head}")
        return self._follow(f"{target}.{rest}" if rest else target, seen=frozenset())

    def _follow(self, dotted: str, seen: frozenset[str]) -> str:
        owner, _, rest = dotted.rpartition(".")
        while owner and owner not in self:
            owner, _, part = owner.rpartition(".")
            rest = f"{part}.{rest}"
        head, _, tail = rest.partition(".")
        if dotted in seen or not owner or head not in self.names[owner]:
            return dotted
        target = self.names[owner][head]
        return self._follow(f"{target}.{tail}" if tail else target, seen | {dotted})


def read_package(folder: Path) -> Package:
    """Parses every Python file below `folder`, whose name is the package's name."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [folder.name, *path.relative_to(folder).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
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


def _imports(module: Module, package: Package) -> Iterator[Import]:
    for node, eager in _walk(module.tree, eager=True):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            members = [f"{base}.{alias.name}" for alias in node.names]
            # A submodule is meant itself; any other name comes from the module it is taken out of.
            targets = [member if member in package else base for member in members]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = (dotted_name(node.func) or "").rpartition(".")[2]
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                targets = [node.args[0].value]
        for target in dict.fromkeys(targets):
            yield Import(module.name, node.lineno, target, eager)


def _walk(node: ast.AST, eager: bool) -> Iterator[tuple[ast.stmt | ast.expr, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = eager and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.If) and (dotted_name(child.test) or "").endswith("TYPE_CHECKING"):
            inside = False
        if isinstance(child, ast.stmt | ast.expr):
            yield child, inside
        yield from _walk(child, inside)


def _base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    start = module.package.split(".")
    start = start[: len(start) - node.level + 1]
    return ".".join([*start, node.module] if node.module else start)


def _bound_names(module: Module) -> dict[str, str]:
    bound = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{_base(module, node)}.{alias.name}"
    return bound
