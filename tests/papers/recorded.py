"""Numbers of runs that `record` has kept, changes of them, and what statements say of either."""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxflow import papers
from jaxflow.papers.claims import Finding
from jaxflow.papers.dataset import load_arrays
from jaxflow.papers.registry import Entry
from jaxflow.papers.table import Table
from jaxflow.papers.verdicts import Verdict

RUNS = Path(__file__).parent / "runs"
EXPERIMENTS = [(paper.name, entry.name) for paper in papers.known_papers() for entry in papers.entries_of(paper.name)]

# Holds, holds at this Rate, Open, counterexample (X), None inside the hypotheses, and not run (-).
LETTERS = {
    Verdict.holds: "H",
    Verdict.holds_at_this_rate: "R",
    Verdict.not_settled: "O",
    Verdict.counterexample_found: "X",
    Verdict.outside_hypotheses: "N",
    Verdict.not_run: "-",
}

# Columns that are given with an experiment, not measured: its statements look things up by them.
GIVEN = {"scales", "log_alpha", "alphas", "lengths", "shape", "own", "cell", "d", "m"}

# What becomes of columns of these kinds.
WAYS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "inverted": ("b", np.logical_not),
    "one more": ("iuf", lambda column: column + 1),
    "zero": ("iuf", lambda column: 0 * column),
    "negated": ("f", lambda column: -column),
    "a hundredfold": ("f", lambda column: 100.0 * column),
    "a hundredth": ("f", lambda column: column / 100.0),
    "reversed": ("f", np.flip),
    "infinite": ("f", lambda column: column + np.inf),
    "minus infinity": ("f", lambda column: column - np.inf),
    "rising": ("f", lambda column: 1e6 * np.sort(np.atleast_1d(column)).reshape(column.shape)),
    "unknown": ("f", lambda column: np.nan * column),
}
# Of a kind: that nothing was found.
NOTHING = {"f": lambda column: np.nan * column, "b": np.zeros_like, "i": np.zeros_like, "u": np.zeros_like}


def entry_of(paper: str, name: str) -> Entry:
    """A figure or a check."""
    return next(entry for entry in papers.entries_of(paper) if entry.name == name)


def scale_of(paper: str, name: str) -> str:
    """At which scale numbers were kept: what takes hours at that of a paper was run at the quick one."""
    return "quick" if paper == "results" or name == "failures" else "paper"


@functools.cache
def _arrays(paper: str) -> dict[str, np.ndarray]:
    return load_arrays(RUNS / f"{paper}.npz")


def numbers_of(paper: str, name: str) -> Table:
    """The kept numbers of a figure or a check."""
    dataset = entry_of(paper, name).dataset
    raw: dict[str, dict[str, np.ndarray]] = {part: {} for part in dataset.parts}
    for place, column in _arrays(paper).items():
        of, part, field = place.split(".")
        if of == dataset.name:
            raw[part][field] = column
    return dataset.typed(raw)


def changed(numbers: Table, *changes: Any) -> Table:
    """The same numbers with other columns: `(names, value)`, or `(names, value, place)` at a place alone.

    The names are `part.column`, where both may be several words.
    """
    for names, value, *place in changes:
        parts, _, fields = names.partition(".")
        for part, field in itertools.product(parts.split(), fields.split()):
            table = getattr(numbers, part)
            array = np.array(getattr(table, field))
            array[place[0] if place else ...] = value
            numbers = numbers.replace(**{part: table.replace(**{field: array})})
    return numbers


def columns(numbers: Table) -> tuple[list[str], list[np.ndarray], Any]:
    """Names, arrays, and what makes numbers of such arrays again."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(numbers)
    names = [".".join(key.name for key in path) for path, _ in leaves]
    return names, [np.asarray(leaf) for _, leaf in leaves], tree


def is_given(name: str, column: np.ndarray) -> bool:
    """The own program of a limit is given; of Figure 1 it is a distance that was measured."""
    field = name.rpartition(".")[2]
    return column.dtype.kind not in NOTHING or (field in GIVEN and not (field == "own" and column.dtype.kind == "f"))


def in_every_way(numbers: Table) -> Iterator[tuple[str, str, Table]]:
    """The same numbers but for one column that is not given, and what became of which column."""
    names, found, tree = columns(numbers)
    for at, (name, column) in enumerate(zip(names, found, strict=True)):
        for way, (kinds, change) in WAYS.items():
            if column.dtype.kind in kinds and not is_given(name, column):
                yield name, way, jax.tree.unflatten(tree, [*found[:at], change(column), *found[at + 1 :]])


def without(numbers: Table) -> Iterator[tuple[str, str, Table]]:
    """The same numbers without those of one kind, and without any: failed runs."""
    names, found, tree = columns(numbers)
    for what, kinds in (("numbers", "f"), ("flags", "b"), ("counts", "iu"), ("anything", "fbiu")):
        lost = [
            NOTHING[column.dtype.kind](column) if column.dtype.kind in kinds and not is_given(name, column) else column
            for name, column in zip(names, found, strict=True)
        ]
        yield "without", what, jax.tree.unflatten(tree, lost)


def letters(findings: list[Finding]) -> str:
    """The verdicts, and C for an open one that some instance contradicts."""
    contradicted = [one.verdict is Verdict.not_settled and one.evidence.contradicted for one in findings]
    return "".join("C" if wrong else LETTERS[one.verdict] for one, wrong in zip(findings, contradicted, strict=True))


def line(found: Finding) -> str:
    """A finding with all that its verdict rests on."""
    evidence = found.evidence
    counts = f"{evidence.inside} inside, {evidence.contradicted} contradict, {evidence.undecided} undecided"
    rate = "" if evidence.rate is None else f"; {evidence.rate.in_words()}"
    return f"{found.source}: {found.verdict}; {counts}; {found.outside} outside; worst {found.worst:.2e}{rate}"


def said_of(paper: str, name: str) -> list[str]:
    """Line by line: what is said of the kept numbers, and all changes of a column that change a verdict."""
    entry, numbers = entry_of(paper, name), numbers_of(paper, name)
    found = entry.find(numbers)[0]
    ways: dict[tuple[str, str], list[str]] = {}
    for column, way, other in [*in_every_way(numbers), *without(numbers)]:
        ways.setdefault((column, letters(entry.find(other)[0])), []).append(way)
    others = [f"{column} {', '.join(how)}: {said}" for (column, said), how in ways.items() if said != letters(found)]
    return [*map(line, found), *others]


def recorded(paper: str) -> dict[str, list[str]]:
    """What was said of each experiment."""
    text = (RUNS / f"{paper}.txt").read_text(encoding="utf-8")
    return {block.splitlines()[0]: block.splitlines()[1:] for block in text.split("\n\n")}
