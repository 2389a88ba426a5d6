"""The continuous flow: Diffrax's `diffeqsolve` around one vector field."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import (
    RESULTS,
    Code,
    ScaledGradient,
    all_finite,
    good,
    is_concrete,
    require,
    tree_norm,
    tree_scale,
)
from jaxflow.flow.clocks import AbstractClock, as_clock
from jaxflow.flow.coordinates import AbstractCoordinates, as_coordinates
from jaxflow.flow.solvers import as_controller, as_solver, as_terms
from jaxflow.flow.stopping import AbstractStop, Situation
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point, Regime, Trajectory, describe


def integrate(
    risk: EmpiricalRisk,
    model: Any,
    *,
    clock: AbstractClock | str,
    until: float | Float[Array, ""],
    solver: diffrax.AbstractSolver | str | None = None,
    controller: diffrax.AbstractStepSizeController | None = None,
    coordinates: AbstractCoordinates | str | None = None,
    stop: AbstractStop | None = None,
    save_at: Float[Array, " m"] | None = None,
    dt0: float | None = None,
    max_steps: int = 100_000,
    throw: bool = True,
    progress: bool = False,
) -> Trajectory:
    r"""Follows $\dot\theta=-\nabla L(\theta)$ from `model`.

    **Arguments:**

    - `risk`, `model`: what flows; written for one instance, batch with `jax.vmap`.
    - `clock`: a clock, or its name; `until`: where to end, as a reading of that clock ($\log t$ for
      `LogTime`, a length for `ArcLength`, and so on).
    - `solver`: any of Diffrax's, or its name; None for the clock's default.
    - `controller`: a Diffrax step size controller; None for one with tolerances fit for the solver.
    - `coordinates`: the state; `Weights()` by default.
    - `stop`: a stopping rule, or several joined by `|` and `&`.
    - `save_at`: increasing readings of the clock at which to save points.
    - `dt0`: the first step in the clock's integration variable; needed by a controller of constant steps.
    - `max_steps`: the budget.
    - `throw`: raise if the (concrete) integration failed. Under a trace nothing raises; read `result`.
    - `progress`: print a progress meter (for one long run; not under `vmap`).

    **Returns:** a `Trajectory`. `result` is `successful` (reached `until`), `event_occurred` (a rule stopped
    it), or says what went wrong.

    **Raises:** `ValueError` naming the argument; `RuntimeError` if `throw` and the integration failed.
    """
    clock = as_clock(clock)
    solver = as_solver(solver, clock)
    controller = as_controller(controller, solver)
    coordinates = as_coordinates(coordinates)
    risk.check(model)
    require(max_steps >= 1, "max_steps", f"expected at least 1, got {max_steps}")
    require(not is_concrete(until) or not np.any(np.isnan(np.asarray(until))), "until", "NaN is no clock reading")
    if save_at is not None:
        save_at = jnp.asarray(save_at)
        require(save_at.ndim == 1 and save_at.size > 0, "save_at", f"expected shape (m,), got {save_at.shape}")
        if is_concrete(save_at, until):
            grid = np.asarray(save_at)
            require(bool(np.all(np.diff(grid) > 0)), "save_at", "readings must increase")
            # A last save point that differs from the end by rounding is the end.
            past = grid[-1] - np.asarray(until) > 1e-9 * max(1.0, abs(float(until)))
            require(not bool(past), "save_at", f"ends past until = {until}")
    trajectory = _integrate(
        risk, model, clock, jnp.asarray(until, dtype=float), solver, controller, coordinates, stop, save_at,
        dt0, max_steps, progress,
    )  # fmt: skip
    if throw and is_concrete(trajectory.result) and not bool(good(trajectory.result)):
        raise RuntimeError(f"integrate: {describe(trajectory.result)}")
    return trajectory


class _Flow(eqx.Module):
    r"""The extended system against the clock's variable s: `(y, w, a)`.

    With coordinates x and $\rho=ue^s$ (for a clock whose lengths grow like that; otherwise $\rho=1$):

    - $y=x/\rho$, of order one. An implicit method solves for rates to tolerances that are absolute where a
      component vanishes; the rates' rounding errors grow like $|x|\rho\varepsilon$ and would pass any fixed
      tolerance (measured: Newton's method fails from an arc length of 4e5 on).
    - $w=\rho(1+t)e^{-r}$ with $r=\log dt/ds$. $\log(1+t)$ itself would be a hopeless state: its rate
      $e^{r-\log(1+t)}$ overflows within one step. w obeys a linear equation and stays of order one; it is
      left out where the clock tells the time.
    - $a=\log(1+\text{arc length})$.
    """

    clock: AbstractClock
    coordinates: AbstractCoordinates
    context: PyTree

    def start(self, state: PyTree) -> PyTree:
        zero = jnp.zeros(())
        rho, _ = self.scale(zero)
        y = tree_scale(1.0 / rho, state)
        if self.clock.tells_time:
            return y, None, zero
        scaled, _, _, log_speed = self.rates(zero, state)
        return y, rho * jnp.exp(scaled.log_scale - log_speed), zero

    def scale(self, s: Array) -> tuple[Array, Array]:
        """ρ and ρ'/ρ."""
        log_length = self.clock.log_length(s)
        if log_length is None:
            return jnp.ones(()), jnp.zeros(())
        return jnp.exp(log_length), jnp.ones(())

    def unpack(self, s: Array, extended: PyTree) -> tuple[PyTree, Array | None, Array]:
        """Coordinates x, (1 + t) e^{-r}, and log(1 + arc length)."""
        y, w, log1p_length = extended
        rho, _ = self.scale(s)
        return tree_scale(rho, y), None if w is None else w / rho, log1p_length

    def rates(self, s: Array, state: PyTree) -> tuple[ScaledGradient, Array, Array, Array]:
        """The scaled gradient, log‖G‖, log Σ|P| and the clock's log speed."""
        scaled = self.coordinates.field(self.context, state)
        norm = tree_norm(scaled.gradient)
        log_norm = _safe_log(norm)
        total = norm if scaled.multipliers is None else jnp.sum(jnp.abs(scaled.multipliers))
        log_sum = _safe_log(total)
        log_speed = self.clock.log_speed(s, scaled.log_scale, log_norm, log_sum)
        # Where the gradient is exactly zero nothing moves, and no clock has a meaning.
        return scaled, log_norm, log_sum, jnp.where(norm > 0, log_speed, 0.0)

    def field(self, s: Array, extended: PyTree, args: Any) -> PyTree:
        y, w, log1p_length = extended
        rho, expansion = self.scale(s)
        state = tree_scale(rho, y)
        scaled, log_norm, _, log_speed = self.rates(s, state)
        velocity = tree_scale(-jnp.exp(log_speed), scaled.gradient)
        rate = jax.tree.map(lambda v, y: v / rho - expansion * y, velocity, y)
        length = jnp.exp(log_speed + log_norm - log1p_length)
        if w is None:
            return rate, None, length

        def log_rate(s: Array, state: PyTree) -> Array:
            # The scale is constant under differentiation; the factor that it scales is not.
            scaled, _, _, log_speed = self.rates(s, state)
            return log_speed - scaled.log_scale

        _, growth = jax.jvp(log_rate, (s, state), (jnp.ones_like(s), velocity))
        # Newton's matrix may ignore how the growth depends on the state: w feeds back into nothing, so one
        # more iteration settles it, and third derivatives of the model are saved.
        return rate, rho + w * (expansion - jax.lax.stop_gradient(growth)), length

    def situation(self, risk: EmpiricalRisk, s: Array, extended: PyTree) -> Situation:
        state, w, log1p_length = self.unpack(s, extended)
        scaled, log_norm, log_sum, log_speed = self.rates(s, state)
        return Situation(
            risk,
            self.log_time(s, w, log_speed - scaled.log_scale),
            _log_expm1(log1p_length),
            scaled,
            log_norm,
            log_sum,
            lambda: self.coordinates.decode(self.context, state),
            lambda: self.velocity(state, scaled.gradient),
        )

    def log_time(self, s: Array, w: Array | None, log_rate: Array) -> Array:
        """log t from w = (1 + t) e^{-log_rate}, or from the clock."""
        if w is None:
            return self.clock.log_time(s)
        return _log_expm1(jnp.maximum(log_rate + _safe_log(w), 0.0))

    def velocity(self, state: PyTree, gradient: PyTree) -> PyTree:
        """−∇L/‖∇L‖ in the structure of the model, pushed forward from the coordinates."""
        norm = tree_norm(gradient)
        unit = tree_scale(-1.0 / jnp.where(norm > 0, norm, 1.0), gradient)
        _, tangent = eqx.filter_jvp(lambda x: self.coordinates.decode(self.context, x), (state,), (unit,))
        return tangent

    def point(self, risk: EmpiricalRisk, s: Array, extended: PyTree, reached: Array) -> Point:
        state, w, log1p_length = self.unpack(s, extended)
        scaled, _, _, log_speed = self.rates(s, state)
        model = self.coordinates.decode(self.context, state)
        moving = risk.filter(model)
        return Point(
            model=model,
            log_time=self.log_time(s, w, log_speed - scaled.log_scale),
            log_arc_length=_log_expm1(log1p_length),
            log_norm=jnp.log(tree_norm(eqx.filter(model, moving))),
            log_scale=scaled.log_scale,
            log_gradient_norm=scaled.log_norm,
            velocity=eqx.filter(self.velocity(state, scaled.gradient), moving),
            multipliers=scaled.multipliers,
            reached=reached,
        )


@eqx.filter_jit
def _integrate(
    risk, model, clock, until, solver, controller, coordinates, stop, save_at, dt0, max_steps, progress
) -> Trajectory:
    state, context = coordinates.encode(risk, model)
    flow = _Flow(clock, coordinates, context)
    # Non-finite input would be integrated step by rejected step to the end of the budget: do not start.
    finite = all_finite((eqx.filter(risk, eqx.is_array), eqx.filter(model, eqx.is_array), state))
    start = jnp.zeros_like(until)
    end = jnp.where(finite, jnp.maximum(clock.internal(until), start), start)
    subs = [diffrax.SubSaveAt(t1=True)]
    if save_at is not None:
        grid = jnp.clip(clock.internal(save_at), start, end)
        subs.append(diffrax.SubSaveAt(ts=grid))
    solution = diffrax.diffeqsolve(
        as_terms(flow.field, solver),
        solver,
        start,
        end,
        dt0,
        flow.start(state),
        stepsize_controller=controller,
        saveat=diffrax.SaveAt(subs=subs),
        event=_event(flow, risk, stop),
        max_steps=max_steps,
        throw=False,
        progress_meter=diffrax.TextProgressMeter() if progress else diffrax.NoProgressMeter(),
    )
    last = jax.tree.map(lambda x: x[0], (solution.ts[0], solution.ys[0]))  # pyright: ignore
    final = flow.point(risk, last[0], last[1], jnp.asarray(True))
    saved = None
    if save_at is not None:
        readings, states = solution.ts[1], solution.ys[1]  # pyright: ignore
        saved = jax.vmap(lambda s, y: flow.point(risk, s, y, jnp.isfinite(s)))(readings, states)
    result = RESULTS.where(finite, RESULTS.promote(solution.result), RESULTS.nonfinite_data)
    if risk.opaque:
        result = RESULTS.where(_underflown(final.log_gradient_norm), RESULTS.gradient_underflow, result)
    return Trajectory(final, saved, Code(Regime.exact, Regime), result, solution.stats)


def _event(flow: _Flow, risk: EmpiricalRisk, stop: AbstractStop | None) -> diffrax.Event | None:
    if stop is None and not risk.opaque:
        return None

    def condition(t: Any, y: PyTree, args: Any, **kwargs: Any) -> Array:
        situation = flow.situation(risk, t, y)
        fired = jnp.asarray(False) if stop is None else stop(situation)
        return fired | _underflown(situation.scaled.log_norm) if risk.opaque else fired

    return diffrax.Event(condition)


def _underflown(log_gradient_norm: Array) -> Array:
    return log_gradient_norm < jnp.log(jnp.finfo(log_gradient_norm.dtype).tiny)


# Stands for log 0 where −inf would turn into NaN.
_LOG_ZERO = -700.0


def _safe_log(x: Array) -> Array:
    positive = x > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, x, 1.0)), _LOG_ZERO)


def _log_expm1(u: Array) -> Array:
    return u + jnp.log(-jnp.expm1(-u))
