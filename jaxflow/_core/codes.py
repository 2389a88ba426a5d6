"""Outcomes as data: small integers with names, safe to batch and to store.

The values are part of every stored result. They are explicit, never reused and never renumbered.
"""

import enum
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt8


class Outcome(enum.IntEnum):
    """How one instance ended. Every instance of a study ends in exactly one of these.

    **Example:**

    ```python
    assert limit.outcome == jf.Outcome.globally_optimal or limit.outcome == jf.Outcome.locally_optimal
    ```
    """

    not_run = 0
    globally_optimal = 1
    locally_optimal = 2
    not_locally_optimal = 3
    finite_stationary_point = 4
    limit_point = 5
    infeasible_program = 6
    ambiguous = 7
    undecided = 8
    failed = 9
    prediction_contradicted = 10
    selection_settled = 11
    kkt_point = 12


class SelectionStatus(enum.IntEnum):
    """The status of the selected tokens by Definition 2 of Tarzanagh et al. (2023).

    **Example:**

    ```python
    limit.selection_status == jf.SelectionStatus.global_
    ```
    """

    global_ = 1
    local = 2
    not_local = 3
    ambiguous = 4
    not_applicable = 5


class Code(eqx.Module):
    """An enumeration value, or a batch of them, carried through `jit` and `vmap`.

    `code == "failed"`, `code == Outcome.failed` and `code == 9` all compare elementwise; `str(code)` is the name;
    `numpy.asarray(code)` gives the `uint8` values to store. A name that is not a member raises an error that lists the
    names, because a misspelt name would never be equal. A code has no hash, because it equals a number and a string,
    whose hashes differ; the key of a dictionary may be `int(code)` or `str(code)`.

    **Example:**

    ```python
    code = jf.Code(1, jf.Outcome)
    assert code == "globally_optimal" and str(code) == "globally_optimal" and int(code) == 1
    ```
    """

    value: UInt8[Array, "..."]
    names: type[enum.IntEnum] = eqx.field(static=True)

    def __init__(self, value: Any, names: type[enum.IntEnum]):
        self.value = jnp.asarray(value, dtype=jnp.uint8)
        self.names = names

    def __eq__(self, other: object) -> Bool[Array, "..."] | bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        if isinstance(other, Code):
            return self.value == other.value
        if isinstance(other, str):
            if other not in self.names.__members__:
                raise ValueError(f"{other!r} is not one of {', '.join(self.names.__members__)}")
            return self.value == self.names[other].value
        return self.value == jnp.asarray(other)

    def __ne__(self, other: object) -> Bool[Array, "..."] | bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return jnp.logical_not(jnp.asarray(self == other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __int__(self) -> int:
        return int(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype) if copy else np.asarray(self.value, dtype=dtype)

    def __getitem__(self, index: Any) -> "Code":
        return Code(self.value[index], self.names)

    def __iter__(self) -> Iterator["Code"]:
        # By indices alone a loop has no end: those beyond the last one give the last member.
        return (Code(value, self.names) for value in self.value)

    @property
    def name(self) -> Any:
        """The name of a scalar code; an array of names for a batch."""
        values = np.asarray(self.value)
        if values.ndim == 0:
            return self.names(int(values)).name
        return np.vectorize(lambda code: self.names(int(code)).name, otypes=[object])(values)

    def __str__(self) -> str:
        return str(self.name)

    def __repr__(self) -> str:
        return f"{self.names.__name__}({self.name})"
