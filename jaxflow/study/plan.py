"""What a study is: factors, trials, seed and block, as data that can be compared and stored."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxflow._core import require
from jaxflow.study.keys import canonical

# Names that the store itself uses.
RESERVED = ("trial", "block", "checked", "outcome", "block_checksum")

Index = tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A study as data. `experiment` holds its name, where to import it from, and its settings."""

    experiment: dict[str, Any]
    data_factors: dict[str, tuple]
    method_factors: dict[str, tuple]
    trials: int
    seed: int
    block: int

    def __post_init__(self) -> None:
        both = set(self.data_factors) & set(self.method_factors)
        require(not both, "method_factors", f"{', '.join(sorted(both))} is a data factor as well")
        for name, values in self.factors.items():
            check_factor(name, values)
        require(self.trials >= 1, "trials", f"expected at least 1, got {self.trials}")
        require(self.block >= 1, "block", f"expected at least 1, got {self.block}")

    @property
    def factors(self) -> dict[str, tuple]:
        """Data factors, then method factors; their order is that of the axes."""
        return {**self.data_factors, **self.method_factors}

    @property
    def cells(self) -> Index:
        """Number of values of each factor."""
        return tuple(len(values) for values in self.factors.values())

    @property
    def blocks_a_cell(self) -> int:
        """Blocks that hold the trials of one cell; the last may be partly padding."""
        return -(-self.trials // self.block)

    @property
    def block_count(self) -> int:
        """Blocks of the whole study."""
        return int(np.prod(self.cells, dtype=int)) * self.blocks_a_cell

    @property
    def instance_count(self) -> int:
        """Instances of the whole study."""
        return int(np.prod(self.cells, dtype=int)) * self.trials

    def blocks(self) -> Iterator[Index]:
        """Every block: the index of its cell, then its number within the cell. Cell by cell."""
        return itertools.product(*(range(count) for count in self.cells), range(self.blocks_a_cell))

    def values_at(self, index: Sequence[int]) -> dict[str, Any]:
        """The factors of a cell (or of the cell of a block)."""
        return {name: values[at] for (name, values), at in zip(self.factors.items(), index, strict=False)}

    def data_values(self, factors: Mapping[str, Any]) -> dict[str, Any]:
        """Those of `factors` that the keys are made of."""
        return {name: factors[name] for name in self.data_factors}

    def trials_of(self, index: Sequence[int]) -> range:
        """The trials of a block, without padding."""
        first = index[-1] * self.block
        return range(first, min(first + self.block, self.trials))

    def identity(self) -> dict[str, Any]:
        """All of it for JSON. Two stores belong to one study if and only if these are equal."""
        return {
            "experiment": self.experiment,
            "data_factors": [[name, list(values)] for name, values in self.data_factors.items()],
            "method_factors": [[name, list(values)] for name, values in self.method_factors.items()],
            "trials": self.trials,
            "seed": self.seed,
            "block": self.block,
        }

    @staticmethod
    def from_identity(identity: Mapping[str, Any]) -> "Plan":
        """The inverse of `identity`."""
        factors = {
            kind: {name: tuple(values) for name, values in identity[kind]}
            for kind in ("data_factors", "method_factors")
        }
        return Plan(
            experiment=dict(identity["experiment"]),
            trials=int(identity["trials"]),
            seed=int(identity["seed"]),
            block=int(identity["block"]),
            **factors,
        )


def check_factor(name: str, values: tuple) -> None:
    """**Raises:** `ValueError` for a reserved name, no values, a value twice, or values that no axis can carry."""
    require(name.isidentifier(), name, "the name of a factor must be an identifier")
    require(name not in RESERVED, name, f"{name!r} is a name that the store uses itself")
    require(len(values) > 0, name, "a factor needs at least one value")
    for value in values:
        require(
            isinstance(value, bool | int | float | str),
            name,
            f"expected numbers, Booleans or strings, got {value!r}; name it by a string and build it in `setup`",
        )
    kinds = {"str" if isinstance(v, str) else "bool" if isinstance(v, bool) else "number" for v in values}
    require(len(kinds) == 1, name, f"values of different kinds ({', '.join(sorted(kinds))}) make no axis")
    try:
        names = [canonical(value) for value in values]
    except ValueError as error:
        raise ValueError(f"{name}: {values} contains NaN or an infinity") from error
    twice = sorted({text for text in names if names.count(text) > 1})
    require(not twice, name, f"{', '.join(twice)} is given twice; one instance would have two results")


def as_plain(value: Any) -> Any:
    """A factor's value without NumPy's scalar types, which JSON does not know."""
    return value.item() if isinstance(value, np.generic) else value
