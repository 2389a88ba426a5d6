"""What an argument may be: from a valid value follow those that must be refused, one for each kind of fault."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NAN, INF = float("nan"), float("inf")
KEY = jax.random.key(0)

# Of a valid value: other values of the argument, which must be refused.
Kind = Callable[[Any], Iterable[Any]]


def values(*wrong: Any) -> Kind:
    """These wrong values, whatever the valid one is."""
    return lambda valid: wrong


def optional(kind: Kind) -> Kind:
    """The same, and None is fine."""
    return lambda valid: (wrong for wrong in kind(valid) if wrong is not None)


NO_NUMBER = (None, "1", True, np.ones(2), NAN, 10**400)
NO_INTEGER = (*NO_NUMBER, 2.5, INF)


def count(least: int = 1) -> Kind:
    """An integer from `least`."""
    return values(*NO_INTEGER, least - 1)


def number(
    *, positive: bool = False, least: float | None = None, most: float | None = None, infinite: bool = False
) -> Kind:
    """A real number, or a scalar array of one."""
    wrong: tuple = NO_NUMBER
    wrong += () if infinite else (INF,)
    wrong += (0.0, -1e-300) if positive else ()
    wrong += () if least is None else (least - 1.0,)
    wrong += () if most is None else (most + 1.0,)
    return values(*wrong)


# Any integer that eight bytes hold.
seed = values(*NO_INTEGER, 2**64)
# An object of a class of the library, or of a library below it; or a name that it stands for.
thing = values(None, "abc", 3, [], type, print)
# Something that can be called.
function = values(None, "abc", 3, [print])
boolean = values(None, "no", 1, np.ones(2, bool))
# One key, or a seed.
key = values(None, "abc", 2.5, True, [0, 1], jax.random.split(KEY))
# A path of this machine.
path = values(None, 3, "  ", "s3://bucket/a", "a\0b")
text = values(None, b"abc", 3)
# A tuple or list.
sequence = values(None, "abc", 3, jnp.ones(()))


def array(
    *, infinite: bool = False, nan: bool = False, mixed: bool = False, lower: bool = True, higher: bool = True
) -> Kind:
    """Real numbers of the shape of the valid value.

    **Arguments:** `infinite`, `nan`: such entries are fine; `mixed`: complex ones too; `lower`, `higher`: whether an
    axis less or more is wrong.
    """

    def refused(value: Any) -> Iterator[Any]:
        valid = np.asarray(value, complex if mixed else float)
        yield from (None, [[1.0, 2.0], [1.0]], np.ones(valid.shape, bool), np.full(valid.shape, "a"))
        yield from () if mixed else (valid + 0j,)
        yield from (valid[0],) if valid.ndim and lower else ()
        yield from (valid[None],) if higher else ()
        for entry in () if nan else (NAN,) if infinite else (NAN, INF):
            spoiled = valid.copy()
            spoiled.flat[-1] = entry
            yield spoiled

    return refused


def mask(value: Any) -> Iterator[Any]:
    """Booleans of the shape of the valid value."""
    valid = np.asarray(value)
    yield from (None, valid.astype(float), 2 * valid.astype(int), [[True, False], [True]], valid[0], valid[None])


def integers(value: Any) -> Iterator[Any]:
    """Integers of the shape of the valid value."""
    valid = np.asarray(value)
    yield from (None, "abc", valid + 0.5, valid.astype(bool), valid[0], valid[None])
