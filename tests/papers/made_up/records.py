"""Made-up records of one value a column, and those of the programs that two solvers solve."""

from typing import Any

import numpy as np

from jaxflow.papers.cross_check import Agreement, ProgramNumbers


def filled(kind: Any, shape: tuple[int, ...], *values: Any) -> Any:
    """A record whose columns have these values everywhere."""
    return kind(*(np.full(shape, value) for value in values))


def programs(kinds: int) -> list[ProgramNumbers]:
    """Both solvers agree."""
    return [ProgramNumbers(Agreement(np.full((kinds, 2), 1e-12)))]
