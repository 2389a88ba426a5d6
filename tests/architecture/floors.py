"""The floors, and which imports they allow. Each law returns what breaks it, one sentence a finding; none is good."""

import ast
import graphlib
import sys

from tests.architecture.sources import Package, dotted_name

FLOORS = {
    "_core": 0,
    "data": 1,
    "losses": 1,
    "plots": 1,
    "models": 2,
    "risk": 3,
    "teachers": 3,
    "margin": 4,
    "trajectory": 5,
    "flow": 6,
    "gradient_descent": 6,
    "theory": 7,
    "limits": 8,
    "study": 9,
    "report": 10,
    "papers": 11,
    "cli": 12,
    "__main__": 13,
}

# Heavy libraries, which the function that needs them imports.
LAZY = {"xarray", "zarr", "dask", "distributed", "cvxpy", "matplotlib"}


def room(package: Package, dotted: str) -> str:
    """The room a module belongs to; empty for the package itself."""
    return dotted.removeprefix(package.name).removeprefix(".").partition(".")[0]


def unknown_rooms(package: Package) -> list[str]:
    """Rooms without a floor."""
    rooms = {room(package, name) for name in package.modules} - {""}
    return [f"{name}: no floor is known for this room" for name in sorted(rooms - FLOORS.keys())]


def wrong_arrows(package: Package) -> list[str]:
    """Imports from a higher floor, or from another room of the same one."""
    found = []
    for arrow in package.imports:
        here, there = room(package, arrow.importer), room(package, arrow.target)
        if not here or not package.owns(arrow.target) or here == there:
            continue
        if not there:
            found.append(f"{arrow}: the package itself stands above every room; import from the room")
        elif FLOORS.get(there, 0) >= FLOORS.get(here, 0):
            way = "sideways" if FLOORS.get(there) == FLOORS.get(here) else "up"
            found.append(f"{arrow}: points {way}, floor {FLOORS.get(here)} to floor {FLOORS.get(there)}")
    return found


def import_cycles(package: Package) -> list[str]:
    """A cycle between modules, be its imports lazy or not."""
    graph: dict[str, set[str]] = {name: set() for name in package.modules}
    for arrow in package.imports:
        if arrow.target in package.modules and arrow.target != arrow.importer:
            graph[arrow.importer].add(arrow.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return ["import cycle: " + " <- ".join(error.args[1])]
    return []


def eager_imports(package: Package) -> list[str]:
    """Heavy libraries that merely importing a module would load."""

    def is_later(node: ast.AST) -> bool:
        checked = isinstance(node, ast.If) and (dotted_name(node.test) or "").endswith("TYPE_CHECKING")
        return checked or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)

    later = {
        (module.name, line)
        for module in package.modules.values()
        for node in filter(is_later, module.nodes)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    return [
        f"{arrow}: import it inside the function that needs it"
        for arrow in package.imports
        if arrow.target.partition(".")[0] in LAZY and (arrow.importer, arrow.line) not in later
    ]


def undeclared_imports(package: Package, declared: set[str]) -> list[str]:
    """Libraries that are imported somewhere but are in no dependency list."""
    return [
        f"{arrow}: not among the dependencies in pyproject.toml"
        for arrow in package.imports
        if not package.owns(arrow.target)
        and (library := arrow.target.partition(".")[0]) not in declared
        and library not in sys.stdlib_module_names
    ]
