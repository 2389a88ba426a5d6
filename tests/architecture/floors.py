"""The floors and their laws. Each law returns what breaks it, one sentence a finding; none is good."""

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

# The numerical core stops below this floor; what it does not need is imported by the function that does.
CORE_FLOORS = 9
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
        if arrow.target in package and arrow.target != arrow.importer:
            graph[arrow.importer].add(arrow.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return ["import cycle: " + " <- ".join(error.args[1])]
    return []


def eager_imports(package: Package) -> list[str]:
    """Imports of heavy libraries that merely importing the numerical core would run."""
    return [
        f"{arrow}: import it inside the function that needs it"
        for arrow in package.imports
        if arrow.eager
        and arrow.target.partition(".")[0] in LAZY
        and FLOORS.get(room(package, arrow.importer), 0) < CORE_FLOORS
    ]


def private_imports(package: Package) -> list[str]:
    """Private modules and names of other libraries."""
    found = []
    for name, module in package.modules.items():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                used = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                used = [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute) and (dotted := dotted_name(node)):
                # Only what hangs from an imported name is somebody else's.
                head, _, rest = dotted.partition(".")
                used = [f"{package.names[name][head]}.{rest}"] if head in package.names[name] else []
            else:
                continue
            for target in used:
                library, _, rest = target.partition(".")
                if not package.owns(target) and library != "__future__" and any(map(_private, rest.split("."))):
                    found.append(f"{name}:{node.lineno} uses {target}, which is private")
    return list(dict.fromkeys(found))


def _private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")


def undeclared_imports(package: Package, declared: set[str]) -> list[str]:
    """Libraries that are imported somewhere but are in no dependency list."""
    return [
        f"{arrow}: not among the dependencies in pyproject.toml"
        for arrow in package.imports
        if not package.owns(arrow.target)
        and (library := arrow.target.partition(".")[0]) not in declared
        and library not in sys.stdlib_module_names
    ]
