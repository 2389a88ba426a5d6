"""Which names a file may use: of other libraries, of kernels that batches must not call, of verdicts, of base classes.
Each law returns what breaks it, one sentence a finding; none is good."""

import abc
import ast
import enum
import importlib
import inspect
import pkgutil
from collections.abc import Collection
from types import ModuleType

import equinox as eqx

from jaxflow.papers.verdicts import Verdict
from tests.architecture.sources import Package

# LAPACK takes one matrix at a time on CPU, by this file alone.
OWNER = "jaxflow._core.linalg"
HOUSES = ("jax.numpy.linalg", "jax.scipy.linalg", "jax.lax.linalg")
# Norms of vectors are sums; Schur's form is asked for outside of programs only.
ALLOWED = {"norm", "schur"}
# Their default linear solver calls the kernels as they are.
ROOT_FINDERS = {"optimistix.Newton", "optimistix.Chord"}

HOME = "jaxflow.papers.verdicts"
# A word of everyday language is no verdict: of values only those that say nothing else.
SENTENCES = [verdict.value for verdict in Verdict if " " in verdict.value]

# Neither abstract nor final: an enumeration or a record has no behaviour to inherit, and exceptions are subclassed to
# be caught at several widths.
EXEMPT = (enum.Enum, eqx.Enumeration, tuple, BaseException)


def private_names(package: Package) -> list[str]:
    """Private modules and names of other libraries."""
    found = []
    for name, module in package.modules.items():
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom):
                used = [f"{module.base(node)}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                used = [alias.name for alias in node.names]
            else:
                # Only what hangs from an imported name is somebody else's.
                used = [module.meaning(node)] if isinstance(node, ast.Attribute) else []
            for target in used:
                library, _, rest = target.partition(".")
                if not package.owns(target) and library != "__future__" and any(map(_private, rest.split("."))):
                    found.append(f"{name}:{node.lineno} uses {target}, which is private")
    return list(dict.fromkeys(found))


def _private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")


def batched_kernels(package: Package) -> list[str]:
    """Calls of LAPACK that do not pass through `OWNER`, and root finders without a linear solver of ours."""
    found = []
    for module in package.modules.values():
        for node in module.nodes if module.name != OWNER else ():
            house, _, function = (module.meaning(node) if isinstance(node, ast.Attribute) else "").rpartition(".")
            if house in HOUSES and function not in ALLOWED:
                found.append(f"{module.name}:{node.lineno} calls {house}.{function}: {OWNER} has it for batches")
            if isinstance(node, ast.Call) and (name := module.meaning(node.func)) in ROOT_FINDERS:
                if "linear_solver" not in [keyword.arg for keyword in node.keywords]:
                    found.append(f"{module.name}:{node.lineno} makes {name} without a linear solver of {OWNER}")
    return found


def verdicts_elsewhere(package: Package) -> list[str]:
    """Members of `Verdict`, and their values as whole strings, outside of the file that decides."""
    found = []
    for module in package.modules.values():
        for node in module.nodes if module.name != HOME else ():
            if isinstance(node, ast.Attribute) and node.attr in Verdict.__members__:
                what = node.attr if _is_verdict(module.meaning(node.value)) else ""
            elif isinstance(node, ast.Call):
                what = "by its value" if _is_verdict(module.meaning(node.func)) else ""
            else:
                what = repr(node.value) if isinstance(node, ast.Constant) and node.value in SENTENCES else ""
            if what:
                found.append(f"{module.name}:{node.lineno} names the verdict {what}")
    return found


def _is_verdict(name: str) -> bool:
    # The class of that name in papers, not another one: a limit has a verdict of its own.
    return name.startswith("jaxflow.papers.") and name.endswith(".Verdict")


def local_classes(package: Package) -> list[str]:
    """Classes inside of functions with a base of ours, which `classes_of` does not see."""
    return [
        f"{module.name}:{node.lineno} defines {node.name} in a function: {ast.unparse(base)} is no base from elsewhere"
        for module in package.modules.values()
        for function in module.nodes
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if package.owns(module.meaning(base) or module.name)
    ]


def classes_of(package: ModuleType) -> set[type]:
    """All classes that the modules of a package define, which are imported for it."""
    names = [found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return {x for module in modules for x in vars(module).values() if inspect.isclass(x) and x.__module__ in names}


def neither_abstract_nor_final(classes: Collection[type]) -> list[str]:
    """Classes that another one inherits from, and that could be instantiated all the same."""
    return [
        f"{base.__qualname__} is not abstract, yet {child.__qualname__} inherits from it"
        for child in classes
        for base in child.__bases__
        if base in classes and not issubclass(base, EXEMPT) and not _is_abstract(base)
    ]


def _is_abstract(base: type) -> bool:
    # Equinox keeps the names of `AbstractVar` and `AbstractClassVar` beside those of abstract methods.
    fields = (getattr(base, f"__abstract{kind}vars__", ()) for kind in ("", "class"))
    return inspect.isabstract(base) or abc.ABC in base.__bases__ or any(fields)
