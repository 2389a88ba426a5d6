"""Made-up numbers: columns of one shape, changes of columns, and the numbers of programs that two solvers solve."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.margin import ProgramResult
from jaxflow.papers.table import Table

OPTIMAL, BEST = ProgramResult.optimal.value, Outcome.globally_optimal.value

# The values of columns of which only the name is given: an instance that was followed to its end.
USUAL: dict[str, Any] = {
    **dict.fromkeys(("ok", "good", "found", "inside", "settled", "solved"), True),
    **dict.fromkeys(("empty", "near", "near_tie", "unsure", "ambiguous", "late", "continued"), False),
    **{"outcome": BEST, "result": OPTIMAL, "log_time": 30.0, "steps": 100, "trial": 0},
}


def filled(shape: tuple[int, ...], usual: str = "", /, each: Mapping[str, Any] | None = None, **values: Any) -> Table:
    """A table of this shape: one value everywhere, or one for each instance; a value with more axes has them after
    these. `usual`: names of columns with their usual values; `each`: arrays that all instances have."""
    given = {
        name: np.asarray(value) for name, value in ({name: USUAL[name] for name in usual.split()} | values).items()
    }
    shapes = {name: shape + x.shape[len(shape) :] for name, x in given.items()}
    shapes |= {name: shape + np.shape(x) for name, x in (each or {}).items()}
    given |= each or {}
    return Table({name: np.broadcast_to(given[name], shapes[name]).copy() for name in given})


def changed(numbers: Table, *changes: Any) -> Table:
    """The same numbers with other columns: `(name, value)`, or `(name, value, place)` at a place alone.

    The name is `part.column`, `part part.column` in several parts, or `column` where the numbers are one table.
    """
    for name, value, *place in changes:
        parts, _, column = name.rpartition(".")
        for part in parts.split() or [""]:
            table = getattr(numbers, part) if part else numbers
            array = np.array(getattr(table, column))
            array[place[0] if place else ...] = value
            table = table.replace(**{column: array})
            numbers = numbers.replace(**{part: table}) if part else table
    return numbers


def programs(kinds: int) -> list[Table]:
    """Both solvers agree."""
    return [Table(programs=filled((kinds, 2), apart=1e-12))]
