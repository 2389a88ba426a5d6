"""A class is abstract or final: it can be subclassed or instantiated, never both."""

import ast
import builtins
from dataclasses import dataclass, field

from tests.architecture.sources import Package, dotted_name

# Kinds that are neither: an enumeration or a record has no behaviour to inherit, and exceptions are
# subclassed to be caught at several widths.
EXEMPT_BASES = {
    "enum.Enum",
    "enum.IntEnum",
    "enum.StrEnum",
    "enum.Flag",
    "enum.IntFlag",
    "equinox.Enumeration",
    "diffrax.RESULTS",
    "optimistix.RESULTS",
    "lineax.RESULTS",
    "typing.NamedTuple",
}
ABSTRACT_BASES = {"abc.ABC", "typing.Protocol", "typing_extensions.Protocol"}


@dataclass
class Class:
    """A class statement: its bases by full name, what it leaves abstract and what it implements."""

    name: str
    bases: list[str]
    marked: bool
    abstract: set[str] = field(default_factory=set)
    concrete: set[str] = field(default_factory=set)


def neither_abstract_nor_final(package: Package) -> list[str]:
    """Classes that are subclassed within the package and could be instantiated all the same."""
    classes = {found.name: found for found in _classes(package)}
    children: dict[str, list[str]] = {}
    for found in classes.values():
        for base in found.bases:
            children.setdefault(base, []).append(found.name)
    return [
        f"{name} is not abstract, yet {', '.join(sorted(children[name]))} inherits from it"
        for name, found in classes.items()
        if name in children and not _is_abstract(found, classes) and not _is_exempt(found, classes)
    ]


def _classes(package: Package) -> list[Class]:
    found = []
    for name, module in package.modules.items():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            bases = [package.resolve(name, base) for base in map(dotted_name, node.bases) if base]
            meta = [dotted_name(word.value) or "" for word in node.keywords if word.arg == "metaclass"]
            marked = any(base in ABSTRACT_BASES for base in bases) or any(m.endswith("ABCMeta") for m in meta)
            this = Class(f"{name}.{node.name}", bases, marked)
            for statement in node.body:
                _sort_member(statement, this)
            found.append(this)
    return found


def _sort_member(statement: ast.stmt, owner: Class) -> None:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        marks = [dotted_name(decorator) or "" for decorator in statement.decorator_list]
        abstract = any(mark.rpartition(".")[2].startswith("abstract") for mark in marks)
        (owner.abstract if abstract else owner.concrete).add(statement.name)
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        kind = (dotted_name(statement.annotation) or "").rpartition(".")[2]
        abstract = kind in ("AbstractVar", "AbstractClassVar")
        (owner.abstract if abstract else owner.concrete).add(statement.target.id)
    elif isinstance(statement, ast.Assign):
        owner.concrete |= {target.id for target in statement.targets if isinstance(target, ast.Name)}


def _is_abstract(this: Class, classes: dict[str, Class]) -> bool:
    return this.marked or bool(_unimplemented(this, classes))


def _unimplemented(this: Class, classes: dict[str, Class]) -> set[str]:
    bases = [classes[base] for base in this.bases if base in classes]
    inherited = set().union(*(_unimplemented(base, classes) for base in bases))
    return this.abstract | (inherited - _implemented(this, classes))


def _implemented(this: Class, classes: dict[str, Class]) -> set[str]:
    bases = [classes[base] for base in this.bases if base in classes]
    return this.concrete.union(*(_implemented(base, classes) for base in bases))


def _is_exempt(this: Class, classes: dict[str, Class]) -> bool:
    for base in this.bases:
        if base in EXEMPT_BASES or (base in classes and _is_exempt(classes[base], classes)):
            return True
        builtin = getattr(builtins, base.rpartition(".")[2], None)
        if base not in classes and isinstance(builtin, type) and issubclass(builtin, BaseException):
            return True
    return False
