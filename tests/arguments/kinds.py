"""What an argument may be: from a valid value follow those that must be refused, one for each kind of fault.

Rarer forms of the same faults are tried once, at the calls `RARE` of `table_library`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NAN, INF = float("nan"), float("inf")
KEY = jax.random.key(0)


# Of a valid value: other values of the argument, which must be refused.
Kind = Callable[[Any], Iterable[Any]]


def values(*wrong: Any, kind: Kind | None = None, nothing: bool = False) -> Kind:
    """These wrong values, and those of another kind; `nothing`: None is fine too."""
    refused = tuple(value for value in wrong if not (nothing and value is None))
    return lambda value: (*(kind(value) if kind is not None else ()), *refused)


NO_NUMBER = (None, "1", True, np.ones(2), NAN, 10**400)


def count(least: int = 1, nothing: bool = False) -> Kind:
    """An integer from `least`; `nothing`: or None."""
    return values(*NO_NUMBER, 2.5, INF, least - 1, nothing=nothing)


def seed() -> Kind:
    """Any integer that eight bytes hold."""
    return values(*NO_NUMBER, 2.5, INF, 2**64)


def number(
    positive: bool = False,
    least: float | None = None,
    most: float | None = None,
    nothing: bool = False,
    infinite: bool = False,
) -> Kind:
    """A real number, or a scalar array of one."""
    wrong: tuple = NO_NUMBER
    wrong += () if infinite else (INF,)
    wrong += (0.0, -1e-300) if positive else ()
    wrong += () if least is None else (least - 1.0,)
    wrong += () if most is None else (most + 1.0,)
    return values(*wrong, nothing=nothing)


def choice(*, nothing: bool = False) -> Kind:
    """A name, or an object that it stands for."""
    return values(None, "abc", 3, [], type, nothing=nothing)


def instance(*, nothing: bool = False) -> Kind:
    """An object of a class of the library, or of a library below it."""
    return values(None, "abc", 3, print, nothing=nothing)


def function(*, nothing: bool = False) -> Kind:
    """Something that can be called."""
    return values(None, "abc", 3, [print], nothing=nothing)


def boolean() -> Kind:
    """True or False."""
    return values(None, "no", 1, np.ones(2, bool))


def key() -> Kind:
    """One key, or a seed."""
    return values(None, "abc", 2.5, True, [0, 1], jax.random.split(KEY))


def path(*, nothing: bool = False) -> Kind:
    """A path of this machine."""
    return values(None, 3, "  ", "s3://bucket/a", "a\0b", nothing=nothing)


def text() -> Kind:
    """A string."""
    return values(None, b"abc", 3)


def sequence(*wrong: Any) -> Kind:
    """A tuple or list whose entries the valid value shows."""
    return values(None, "abc", 3, jnp.ones(()), *wrong)


def array(
    *,
    infinite: bool = False,
    nan: bool = False,
    mixed: bool = False,
    lower: bool = True,
    higher: bool = True,
    nothing: bool = False,
    wrong: tuple = (),
) -> Kind:
    """Real numbers of the shape of the valid value.

    **Arguments:** `infinite`, `nan`: such entries are fine; `mixed`: complex ones too; `lower`, `higher`: whether an
    axis less or more is wrong; `wrong`: others that are.
    """

    def refused(value: Any) -> Iterator[Any]:
        valid = np.asarray(value, complex if mixed else float)
        yield from ([[1.0, 2.0], [1.0]], np.ones(valid.shape, bool), np.full(valid.shape, "a"))
        yield from () if nothing else (None,)
        yield from () if mixed else (valid + 0j,)
        yield from (valid[0],) if valid.ndim and lower else ()
        yield from (valid[None],) if higher else ()
        for entry in () if nan else (NAN,) if infinite else (NAN, INF):
            spoiled = valid.copy()
            spoiled.flat[-1] = entry
            yield spoiled
        yield from wrong

    return refused


def mask(*, nothing: bool = False, numbers: bool = False) -> Kind:
    """Booleans of the shape of the valid value; `numbers`: or integers 0 and 1."""

    def refused(value: Any) -> Iterator[Any]:
        valid = np.asarray(value)
        yield from (valid.astype(float), [[True, False], [True]], valid[0], valid[None])
        yield 2 * valid.astype(int) if numbers else valid.astype(int)
        yield from () if nothing else (None,)

    return refused


def integers(*wrong: Any, nothing: bool = False) -> Kind:
    """Integers of the shape of the valid value."""

    def refused(value: Any) -> Iterator[Any]:
        valid = np.asarray(value)
        yield from ("abc", valid + 0.5, valid.astype(bool), valid[0], valid[None], *wrong)
        yield from () if nothing else (None,)

    return refused
