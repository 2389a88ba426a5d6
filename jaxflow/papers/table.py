"""The numbers of an experiment: named arrays, or tables of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_pytree_with_keys_class
class Table:
    """Columns by name, each an attribute: arrays, or tables of one part of an experiment each.

    A part's function returns one instance's; in a dataset every column has two more axes, cells and trials. What the
    columns are stands in the docstring of the function that computes them. A table is a pytree, and not iterable. One
    of plain numbers, words and tuples holds settings: by these it is hashed and compared, so that programs are compiled
    once for equal ones.

    **Arguments:** columns by keyword, or as a mapping or pairs of names and values.

    **Raises:** `ValueError` for a column without a name of its own.

    **Example:**

    ```python
    from jaxflow.papers import Table

    table = Table(value=np.arange(6.0).reshape(2, 3), ok=np.ones((2, 3), bool))
    assert table.at(1).value.tolist() == [3.0, 4.0, 5.0]
    assert table.replace(ok=~table.ok).ok.sum() == 0
    ```
    """

    # Else Python would read columns 0, 1, ... of it.
    __iter__ = None

    # The first name is one that no column has: `inspect.Signature.bind` does not take a keyword of the same name.
    def __init__(self, _columns: "Mapping[str, Any] | Iterable[tuple[str, Any]]" = (), /, **more: Any):
        self.named = dict(_columns) | more
        for name in self.named:
            if not name.isidentifier() or hasattr(type(self), name) or name == "named":
                raise ValueError(f"columns: {name!r} is no name for one")

    def __getattr__(self, name: str) -> Any:
        # Not by the attribute: a copy that is being made has none yet.
        columns = self.__dict__.get("named", {})
        if name not in columns:
            raise AttributeError(f"there is no column {name!r} among {', '.join(columns)}")
        return columns[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.named == other.named

    def __hash__(self) -> int:
        return hash(tuple(self.named.items()))

    def at(self, index: Any) -> "Table":
        """Every column at an index of its first axes: `table.at(0)` is the first cell."""
        return jax.tree.map(lambda column: column[index], self)

    def replace(self, **changes: Any) -> "Table":
        """The same table but for these columns. **Raises:** `ValueError` for one that it does not have."""
        unknown = changes.keys() - self.named.keys()
        if unknown:
            raise ValueError(f"changes: there is no column {', '.join(sorted(unknown))}")
        return Table(self.named | changes)

    def split(self, *shape: int) -> "Table":
        """The first axis of every column as several: that of cells as those of the factors that make them."""
        return jax.tree.map(lambda column: column.reshape(*shape, *column.shape[1:]), self)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        """The columns in their order."""
        return [(jax.tree_util.GetAttrKey(name), column) for name, column in self.named.items()], tuple(self.named)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], columns: Iterable[Any]) -> "Table":
        """Columns under these names again; JAX puts other things than arrays there, too."""
        return cls(zip(names, columns, strict=True))


def stacked(tables: Iterable[Table]) -> Table:
    """Tables of the same columns as one, along a new first axis."""
    return jax.tree.map(lambda *columns: np.stack(columns), *tables)


def joined(tables: Iterable[Table]) -> Table:
    """Tables of the same columns as one, the rows of one after those of another."""
    return jax.tree.map(lambda *columns: np.concatenate(columns), *tables)
