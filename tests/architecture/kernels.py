"""Which file may call what: kernels that a batch on CPU must not call as they are."""

import ast

from tests.architecture.sources import Module, Package, dotted_name

# One matrix at a time on CPU, by this file alone.
OWNER = "jaxflow._core.linalg"
HOUSES = ("jax.numpy.linalg", "jax.scipy.linalg", "jax.lax.linalg")
# Norms of vectors are sums; Schur's form is asked for outside of programs only.
ALLOWED = {"norm", "schur"}
# Their default linear solver calls the kernels as they are.
ROOT_FINDERS = {"optimistix.Newton", "optimistix.Chord"}


def batched_kernels(package: Package) -> list[str]:
    """Calls of LAPACK that do not pass through `OWNER`, and root finders without a linear solver of ours."""
    found = []
    for module in package.modules.values():
        if module.name == OWNER:
            continue
        for node in ast.walk(module.tree):
            name = _meant(node, package.names[module.name]) if isinstance(node, ast.Attribute) else ""
            house, _, function = name.rpartition(".")
            if house in HOUSES and function not in ALLOWED:
                found.append(f"{module.name}:{node.lineno} calls {name}: {OWNER} has it for batches")
        found += _plain_root_finders(module, package)
    return found


def _plain_root_finders(module: Module, package: Package) -> list[str]:
    found = []
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call) or any(keyword.arg == "linear_solver" for keyword in node.keywords):
            continue
        name = _meant(node.func, package.names[module.name])
        if name in ROOT_FINDERS:
            found.append(f"{module.name}:{node.lineno} makes {name} without a linear solver: {OWNER} has one")
    return found


def _meant(node: ast.expr, names: dict[str, str]) -> str:
    """The full name that an expression stands for in a module that imports `names`."""
    first, _, rest = (dotted_name(node) or "").partition(".")
    return f"{names.get(first, first)}.{rest}"
