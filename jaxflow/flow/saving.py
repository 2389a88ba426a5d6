"""What an integration keeps of its path: points at readings of the clock, every step, or a curve in between."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import as_array, check_real, is_concrete, require, require_finite, shown
from jaxflow.flow.clocks import AbstractClock
from jaxflow.flow.system import System
from jaxflow.trajectory import Point


def structured(unravel: Any, extended: PyTree) -> PyTree:
    """A state `(y, w, a)` whose y was raveled, with its structure again; as it is where `unravel` is None."""
    y, *rest = extended
    return (y if unravel is None else unravel(y), *rest)


class DenseOutput(eqx.Module):
    """The flow at any reading of the clock between start and end, by the solver's own interpolation."""

    flow: System
    interpolation: Any
    end: Float[Array, ""]
    unravel: Any = eqx.field(static=True)

    def __call__(self, reading: Float[Array, "..."] | float) -> Point:
        """The point, or points with a leading axis, at readings of the clock from the start to the end.

        **Raises:** `ValueError` for other concrete readings. A traced one gives NaN, and `reached` is False.
        """
        readings = as_array("reading", reading)
        s = jnp.asarray(self.flow.clock.internal(readings))
        # The clock reads the end itself with a rounding of its own.
        within = (s >= 0.0) & (s <= self.end * (1 + 1e-9))
        if is_concrete(within) and not bool(jnp.all(within)):
            first, last = (float(self.flow.clock.reading(bound)) for bound in (jnp.zeros_like(self.end), self.end))
            raise ValueError(f"reading: the integration went from {first:g} to {last:g}, got {shown(reading)}")

        def one(s: Array, reached: Array) -> Point:
            inside = jnp.clip(s, 0.0, self.end)
            extended = structured(self.unravel, self.interpolation.evaluate(inside))
            point = self.flow.point(inside, extended, reached)
            return jax.tree.map(lambda x: jnp.where(reached, x, jnp.nan) if eqx.is_inexact_array(x) else x, point)

        return (one if s.ndim == 0 else eqx.filter_vmap(one))(s, within)


def wanted(
    save_at: Any, saveat: diffrax.SaveAt | None, clock: AbstractClock, start: Array, end: Array
) -> tuple[list[diffrax.SubSaveAt], bool]:
    """What `diffeqsolve` saves beside the end: at most one `SubSaveAt`, and whether a dense output."""
    sub, dense = (None, False) if saveat is None else (saveat.subs, saveat.dense)
    if save_at is not None:
        sub = diffrax.SubSaveAt(ts=save_at)
    if isinstance(sub, diffrax.SubSaveAt) and sub.ts is not None:
        inside = jnp.clip(clock.internal(jnp.asarray(sub.ts, dtype=float)), start, end)
        sub = eqx.tree_at(lambda sub: sub.ts, sub, inside)
    return ([] if sub is None else [sub]), dense


def times_alone(saveat: diffrax.SaveAt) -> Any:
    """The readings, where only points at readings are saved; else None."""
    sub = saveat.subs
    return None if saveat.dense or sub is None or sub.t0 or sub.t1 or sub.steps else sub.ts


def check_readings(clock: AbstractClock, until: Any, save_at: Any, dt0: Any) -> Array | None:
    """`save_at` as an array. **Raises:** `ValueError` for an end, save points or a first step that the clock shows
    never."""
    check_until(clock, until)
    if dt0 is not None:
        check_real("dt0", dt0, positive=True)
    if save_at is None:
        return None
    save_at = as_array("save_at", save_at)
    check_save_at(save_at, until)
    if is_concrete(save_at) and not clock.reads_negative:
        require(bool(np.asarray(save_at)[0] >= 0), "save_at", f"{type(clock).__name__} reads from 0")
    return save_at


def check_until(clock: AbstractClock, until: Any) -> None:
    """**Raises:** `ValueError` for what is no reading, or one that the clock shows never."""
    check_real("until", until)
    if is_concrete(until) and not clock.reads_negative:
        require(bool(until >= 0), "until", f"{type(clock).__name__} reads from 0", got=until)


def check_save_at(save_at: Any, until: Any) -> None:
    """**Raises:** `ValueError` for readings that are no increasing list, or pass the end."""
    require_finite("save_at", save_at)
    require(save_at.ndim == 1 and save_at.size > 0, "save_at", f"expected shape (m,), got {save_at.shape}")
    if is_concrete(save_at, until):
        grid = np.asarray(save_at)
        require(bool(np.all(np.diff(grid) > 0)), "save_at", "readings must increase")
        # A last save point that differs from the end by rounding is the end.
        past = grid[-1] - np.asarray(until) > 1e-9 * max(1.0, abs(float(until)))
        require(not bool(past), "save_at", f"ends past until = {until}")


def check_saveat(saveat: Any, until: Any) -> None:
    """**Raises:** `ValueError` for what a `Trajectory` cannot hold."""
    require(isinstance(saveat, diffrax.SaveAt), "saveat", f"expected a diffrax.SaveAt, got {type(saveat).__name__}")
    more = saveat.solver_state or saveat.controller_state or saveat.made_jump
    require(not more, "saveat", "states of solvers and controllers are kept by a `jaxflow.flow.Drive`, see its lanes")
    sub = saveat.subs
    require(sub is None or isinstance(sub, diffrax.SubSaveAt), "saveat", "expected one set of save points, not `subs`")
    if sub is not None:
        plain = sub.fn is diffrax.SubSaveAt(t1=True).fn
        require(plain, "saveat", "`fn` would see the coordinates; map over `trajectory.points` instead")
        if sub.ts is not None:
            check_save_at(jnp.asarray(sub.ts), until)


def kept(ts: Array, states: Any, steps: int) -> tuple[Array, Any]:
    """The save points without what was reserved for `steps` that were not taken; under a trace, all of them."""
    if not steps or not is_concrete(ts):
        return ts, states
    count = int(np.sum(np.isfinite(np.asarray(ts))))
    return ts[:count], jax.tree.map(lambda x: x[:count], states)
