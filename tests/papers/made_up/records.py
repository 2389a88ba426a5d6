"""Made-up records of one value a column, and those of the programs that two solvers solve."""

from typing import Any

import numpy as np

from jaxflow.papers.table import Table


def filled(kind: Any, shape: tuple[int, ...], **values: Any) -> Any:
    """A record whose columns have these values everywhere."""
    return kind(**{name: np.full(shape, value) for name, value in values.items()})


def programs(kinds: int) -> list[Table]:
    """Both solvers agree."""
    return [Table(programs=Table(apart=np.full((kinds, 2), 1e-12)))]
