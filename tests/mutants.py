"""Faults put into the library on purpose, one at a time: do the tests of the room notice?

    python tests/mutants.py --list                     the sixty faults
    python tests/mutants.py [--only NAME ...]          each in a copy of the tree, with the tests of its room

Fixed rules, found in the syntax tree of the source: a difference becomes a sum (`sign`), a minimum a maximum or a
comparison its opposite (`bound`), a sum loses its second term (`term`), an axis is another one (`axis`), a tolerance is
a thousand times itself (`tolerance`). Of all places of a rule in a room the ones with the smallest checksums of their
lines are taken, so that a change elsewhere moves none of them. What ends the tests by a failure, an error or the time
limit is caught. The exit code is 1 where a fault survives.
"""

import argparse
import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# Source and tests of each room.
ROOMS = {
    "limits": (
        "jaxflow/limits",
        *(f"tests/limits/test_{name}.py" for name in ("certified", "find_limit", "path", "limit_points", "units")),
        *(f"tests/limits/test_{name}.py" for name in ("linear_models", "found", "own_model", "classes", "prompts")),
        "tests/limits/test_calls.py",
    ),
    "flow": ("jaxflow/flow", "tests/flow", "tests/models/test_hadamard.py", "tests/theory/test_tensor_theorems.py"),
    "margin": ("jaxflow/margin", "tests/margin"),
    "risk": (
        "jaxflow/risk.py jaxflow/losses",
        "tests/models/test_scaled_gradient.py",
        "tests/models/test_saturation.py",
        "tests/models/test_linear_networks.py",
        "tests/data/test_classes.py",
    ),
    "study": (
        "jaxflow/study",
        *(f"tests/study/test_{name}.py" for name in ("counting", "keys", "store", "faults", "damage", "pairs")),
        *(f"tests/study/test_{name}.py" for name in ("experiments", "growing", "progress", "token_selection")),
    ),
}
# How many of each rule; a room with fewer places has more of the other rules.
EACH = {"sign": 3, "bound": 3, "term": 2, "axis": 2, "tolerance": 2}
SWAPPED = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min"}
OPPOSITE = {ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<"}
# Larger numbers are settings, and no tolerances.
LARGEST = 1e-3


class Mutant(NamedTuple):
    """A fault: `text` in place of the source from `start` to `end` (bytes of the file)."""

    name: str
    room: str
    file: Path
    start: int
    end: int
    text: str
    line: int

    def described(self) -> str:
        """Where it is, and what becomes of what."""
        source = self.file.read_bytes()[self.start : self.end].decode()
        was, now = (" ".join(text.split()) for text in (source, self.text))
        return f"{self.file.relative_to(ROOT)}:{self.line}: {was} -> {now}"

    def checksum(self) -> int:
        """Of the file's name and its line."""
        line = self.file.read_bytes().splitlines()[self.line - 1].strip()
        return zlib.crc32(f"{self.file.relative_to(ROOT)} ".encode() + line)


def changes(node: ast.AST, source: str) -> Iterator[tuple[str, ast.AST, str]]:
    """The rule, the node that is replaced, and its new text, for each rule that a node falls under."""

    def text(part: ast.AST) -> str:
        return ast.get_source_segment(source, part) or ""

    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        yield "sign", node, f"({text(node.left)} + ({text(node.right)}))"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield "term", node, f"({text(node.left)})"
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPPOSITE:
        yield "bound", node, f"({text(node.left)} {OPPOSITE[type(node.ops[0])]} {text(node.comparators[0])})"
    if isinstance(node, ast.Attribute) and node.attr in SWAPPED:
        yield "bound", node, f"{text(node.value)}.{SWAPPED[node.attr]}"
    if isinstance(node, ast.keyword) and node.arg == "axis" and text(node.value) in ("0", "-1", "1", "-2"):
        yield "axis", node.value, "-1" if text(node.value) in ("0", "-2") else "0"
    if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value <= LARGEST:
        yield "tolerance", node, f"{1e3 * node.value!r}"


def counted(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that are computed with: no annotations, no messages of errors, no strings."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "exc"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr):
                yield node
                yield from counted(node)


def mutants_of(room: str) -> list[Mutant]:
    """The faults of a room."""
    found: dict[str, list[Mutant]] = {rule: [] for rule in EACH}
    sources = [ROOT / source for source in ROOMS[room][0].split()]
    for file in [file for source in sources for file in (sorted(source.rglob("*.py")) or [source])]:
        source = file.read_text(encoding="utf-8")
        begins = [0]
        for line in source.splitlines(keepends=True):
            begins.append(begins[-1] + len(line.encode()))
        for node in counted(ast.parse(source)):
            for rule, old, text in changes(node, source):
                start, end = (begins[row - 1] + column for row, column in _span(old))
                found[rule].append(Mutant(rule, room, file, start, end, text, _span(old)[0][0]))
    chosen: list[Mutant] = []
    every = sorted((one for some in found.values() for one in some), key=Mutant.checksum)
    picks = [(sorted(some, key=Mutant.checksum), EACH[rule]) for rule, some in found.items()]
    for some, number in [*picks, (every, sum(EACH.values()) - sum(min(len(some), k) for some, k in picks))]:
        # One fault of a line.
        fresh = {(one.file, one.line): one for one in reversed(some)}
        taken = {(one.file, one.line) for one in chosen}
        chosen += [one for place, one in reversed(fresh.items()) if place not in taken][:number]
    return [one._replace(name=f"{room}-{k + 1}-{one.name}") for k, one in enumerate(chosen)]


def _span(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    place = (getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))
    row, column, last_row, last_column = place
    return (row, column), (last_row, last_column)


def tested(tree: Path, files: list[str], limit: float) -> str:
    """How test files end in a tree: `passed`, or what ended them."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", *files]
    run = subprocess.Popen(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = run.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        # With the processes that the tests have begun.
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        return f"no end after {limit:.0f} s"
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "passed" if run.returncode == 0 else " ".join(failed[:1]).split(" - ")[0] or f"exit code {run.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of faults, or beginnings of them")
    parser.add_argument("--list", action="store_true", help="print the faults, and run nothing")
    parser.add_argument("--tests", nargs="*", help="test files in place of those of the room")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for the tests of a room")
    asked = parser.parse_args()
    wanted = tuple(asked.only or [""])
    chosen = [one for room in ROOMS for one in mutants_of(room) if one.name.startswith(wanted)]
    if asked.list:
        for one in chosen:
            print(f"{one.name:<20} {one.described()}")
        return 0
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "out", "build", "site", "__pycache__"))
        for room in dict.fromkeys(one.room for one in chosen):
            ended = tested(tree, asked.tests or [*ROOMS[room][1:]], asked.limit)
            if ended != "passed":
                raise SystemExit(f"the tests of {room} fail without a fault: {ended}")
        for one in chosen:
            path, whole = tree / one.file.relative_to(ROOT), one.file.read_bytes()
            path.write_bytes(whole[: one.start] + one.text.encode() + whole[one.end :])
            began = time.perf_counter()
            ended = tested(tree, asked.tests or [*ROOMS[one.room][1:]], asked.limit)
            path.write_bytes(whole)
            survived += ended == "passed"
            said = "SURVIVED" if ended == "passed" else f"caught by {ended.removeprefix('FAILED ')}"
            print(f"{one.name:<20} {time.perf_counter() - began:5.0f} s  {said}\n    {one.described()}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} caught")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
