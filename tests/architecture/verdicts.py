"""Who names a verdict: one file decides, and no other does."""

import ast
from collections.abc import Iterator

from tests.architecture.sources import Module, Package

HOME = "jaxflow.papers.verdicts"


def named_elsewhere(house: Package) -> list[str]:
    """Members of `Verdict`, and their values as whole strings, outside of the file that decides."""
    members = _members(house)
    return [
        f"{module.name}:{line} names the verdict {what}"
        for module in house.modules.values()
        if module.name != HOME
        for line, what in _named(module, members, house.names[module.name])
    ]


def _members(house: Package) -> dict[str, str]:
    """The verdicts by their names, read from the source."""
    for node in house.modules[HOME].tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Verdict":
            return {
                line.targets[0].id: line.value.value
                for line in node.body
                if isinstance(line, ast.Assign)
                and isinstance(line.targets[0], ast.Name)
                and isinstance(line.value, ast.Constant)
            }
    raise AssertionError(f"{HOME} has no class Verdict")


def _named(module: Module, members: dict[str, str], names: dict[str, str]) -> Iterator[tuple[int, str]]:
    # A word of everyday language is no verdict: of values only those that say nothing else.
    values = {value for value in members.values() if " " in value}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in members and _is_verdict(node.value, names):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and _is_verdict(node.func, names):
            yield node.lineno, "by its value"
        elif isinstance(node, ast.Constant) and node.value in values:
            yield node.lineno, repr(node.value)


def _is_verdict(node: ast.expr, names: dict[str, str]) -> bool:
    """The class of that name in papers, not another one (a limit has a verdict of its own)."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "").startswith("jaxflow.papers") and names[node.id].endswith(".Verdict")
    return isinstance(node, ast.Attribute) and node.attr == "Verdict"
