"""What a study is: factors, trials, seed and block, as data that can be compared and stored."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxflow._core import require
from jaxflow._core.checks import LARGEST, as_integer, shown
from jaxflow.study.keys import canonical

# Names that the store itself uses.
RESERVED = ("trial", "block", "checked", "outcome", "block_checksum")

# Beyond these a study is a mistake (or a file that was made to look like one): the axis of trials lies in memory; every
# block is a handful of files, and all of its instances are computed together.
MOST_INSTANCES = 10**9
MOST_BLOCKS = 10**7

# A name becomes a folder, of which file systems want less than 256 bytes.
LONGEST_NAME = 200

Index = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
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
        as_integer("trials", self.trials, 1, MOST_INSTANCES)
        as_integer("block", self.block, 1, MOST_BLOCKS)
        as_integer("seed", self.seed)
        size = f"{self.instance_count:,} instances in {self.block_count:,} blocks"
        require(self.instance_count <= MOST_INSTANCES, "trials", f"{size} are more than a study of {MOST_INSTANCES:,}")
        require(self.block_count <= MOST_BLOCKS, "block", f"{size} are more files than a store holds; make it wider")

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
        return math.prod(self.cells) * self.blocks_a_cell

    @property
    def instance_count(self) -> int:
        """Instances of the whole study."""
        return math.prod(self.cells) * self.trials

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
            **vars(self),
            "data_factors": [[name, list(values)] for name, values in self.data_factors.items()],
            "method_factors": [[name, list(values)] for name, values in self.method_factors.items()],
        }

    @staticmethod
    def from_identity(identity: Any) -> "Plan":
        """The inverse of `identity`. **Raises:** `ValueError` for what is no identity, whatever else it is."""
        require(isinstance(identity, Mapping), "study", "expected a table of names")
        parts = [field.name for field in dataclasses.fields(Plan)]
        for name in parts:
            require(name in identity, "study", f"{name} is missing")
        told = identity["experiment"]
        named = isinstance(told, Mapping) and all(isinstance(told.get(name), str) for name in ("name", "import"))
        require(named and isinstance(told.get("settings"), Mapping), "study", "the experiment is not described")
        factors = {name: _factors(name, identity[name]) for name in ("data_factors", "method_factors")}
        return Plan(**{**{name: identity[name] for name in parts}, **factors, "experiment": dict(told)})

    def same(self, other: "Plan") -> bool:
        """Whether two plans are one study. Not `==`, for which True is 1, and a list in JSON no tuple."""
        return canonical(self.identity()) == canonical(other.identity())


def _factors(kind: str, listed: Any) -> dict[str, tuple]:
    pairs = isinstance(listed, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], list)
        for pair in listed
    )
    require(pairs, "study", f"{kind} is no list of names with their values")
    return {name: tuple(values) for name, values in listed}


def check_factor(name: str, values: tuple) -> None:
    """**Raises:** `ValueError` for a reserved name, no values, a value twice, or values that no axis can carry."""
    require(isinstance(name, str), "factors", f"expected a name, got {name!r}")
    require(
        name.isidentifier() and len(name.encode()) <= LONGEST_NAME, name, "the name of a factor must be an identifier"
    )
    require(name not in RESERVED, name, f"{name!r} is a name that the store uses itself")
    require(len(values) > 0, name, "a factor needs at least one value")
    for value in values:
        require(
            isinstance(value, bool | int | float | str),
            name,
            f"expected numbers, Booleans or strings, got {shown(value)}; name it by a string and build it in `setup`",
        )
    kinds = {"str" if isinstance(v, str) else "bool" if isinstance(v, bool) else "number" for v in values}
    require(len(kinds) == 1, name, f"values of different kinds ({', '.join(sorted(kinds))}) make no axis")
    try:
        names = [canonical(value) for value in values]
    except ValueError as error:
        raise ValueError(f"{name}: {values} contains NaN or an infinity") from error
    twice = sorted(text for text, count in Counter(names).items() if count > 1)
    require(not twice, name, f"{', '.join(twice)} is given twice; one instance would have two results")
    # The axis of the store must hold no other values than these.
    for value in values:
        if isinstance(value, str):
            printable = value.isprintable()  # which NUL, a line break and half of a surrogate pair are not
            require(printable, name, f"{value!r} holds a character that cannot be printed; name it otherwise")
            require(len(value) <= 1000, name, f"{value[:40]!r}... is too long for a name")
        elif isinstance(value, int):
            require(abs(value) <= LARGEST, name, f"{shown(value)} has more than 64 bits; name it by a string")
    if any(isinstance(value, float) for value in values):
        rounded = [value for value in values if float(value) != value]
        require(not rounded, name, f"{rounded} beside real numbers would be rounded to 53 bits")
