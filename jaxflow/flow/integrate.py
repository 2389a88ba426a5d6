"""The continuous flow: Diffrax's `diffeqsolve` around one vector field."""

from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from jaxflow._core import (
    RESULTS,
    all_finite,
    checked,
    good,
    is_concrete,
    positive_or_one,
    require,
    tree_in_float,
)
from jaxflow.flow.clocks import AbstractClock, as_clock
from jaxflow.flow.coordinates import AbstractCoordinates, Weights, as_coordinates
from jaxflow.flow.diagnosis import diagnose
from jaxflow.flow.drive import Drive
from jaxflow.flow.filippov import Filippov
from jaxflow.flow.multiplier_newton import MultiplierNewton
from jaxflow.flow.pieces import has_kinks, knows_pieces
from jaxflow.flow.saving import DenseOutput, check_readings, check_saveat, kept, structured, times_alone, wanted
from jaxflow.flow.solvers import as_controller, as_solver, as_terms, sees_one_vector, with_tolerances
from jaxflow.flow.stopping import AbstractStop
from jaxflow.flow.system import make_system
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory, describe


@checked(least={"max_steps": 1})
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
    saveat: diffrax.SaveAt | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    dt0: float | None = None,
    max_steps: int = 100_000,
    throw: bool = True,
    progress: bool | diffrax.AbstractProgressMeter = False,
) -> Trajectory:
    r"""Follows $\dot\theta=-\nabla L(\theta)$ from `model`.

    **Arguments:**

    - `risk`, `model`: one instance; batch with `jax.vmap`.
    - `clock`: a clock, or its name; `until`: where to end, as a reading of that clock ($\log t$ for
      `LogTime`, a length for `ArcLength`, and so on).
    - `solver`: any of Diffrax's, or its name; None for the clock's default. In `Weights` or `Scores` the default is
      used inside of `Filippov` if model or loss have kinks (ReLU, absolute values, maxima, choices by a comparison),
      unless `adjoint` is given or more is saved than points at readings.
    - `controller`: any of Diffrax's step size controllers, used as it is; None for one with tolerances that suit the
      solver; its absolute tolerance in `Weights` is at most rtol times the largest trained entry of the start. (With an
      implicit solver, Diffrax's default norm of a `PIDController` is replaced by a norm without log t; a norm of your
      own is kept.)
    - `coordinates`: the state; `Weights()` by default.
    - `stop`: a stopping rule, or several joined by `|` and `&`.
    - `save_at`: increasing readings of the clock at which to save points. `saveat`: the same as a `diffrax.SaveAt`,
      whose `ts` are readings of the clock; `steps=True` keeps every step, `dense=True` the curve in between
      (`trajectory.at(reading)`). Both reserve memory for `max_steps` steps.
    - `adjoint`: how derivatives of the result are computed, one of Diffrax's; None for its default.
    - `dt0`: the first step in the clock's integration variable; needed by a controller of constant steps.
    - `max_steps`: the budget.
    - `throw`: raise if the (concrete) integration failed. Under a trace nothing raises; read `result`.
    - `progress`: True prints a progress meter (for one long run; not under `vmap`); or one of Diffrax's meters.

    **Returns:** a `Trajectory`. `result` is `successful` (reached `until`), `event_occurred` (a rule stopped
    it), or names the failure.

    **Raises:** `ValueError` naming the argument; `RuntimeError` if `throw` and the integration failed.

    **Example:**

    ```python
    path = jf.integrate(risk, model, clock="log_time", until=5.0, save_at=jnp.linspace(1.0, 5.0, 5))
    path.log_norm  # (5,)
    ```
    """
    risk, model = tree_in_float((risk, model))
    clock = as_clock(clock)
    coordinates = as_coordinates(coordinates)
    coordinates.check(risk, model)
    risk.check(model)
    require(save_at is None or saveat is None, "saveat", "save_at is the same in another form; give one of them")
    if saveat is not None:
        check_saveat(saveat, until)
        save_at = times_alone(saveat)
    saveat = saveat if save_at is None else None
    save_at = check_readings(clock, until, save_at, dt0)
    plain = adjoint is None and saveat is None
    solver, controller = _method(solver, controller, clock, coordinates, risk, model, plain)
    until = jnp.asarray(until, dtype=float)
    problem = (risk, model, clock, until, solver, controller, coordinates, stop)
    if isinstance(solver, Filippov):
        trajectory: Any = _slide(*problem, save_at, dt0, max_steps, bool(progress))
    else:
        adjoint = diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint
        meter: Any = progress
        if isinstance(progress, bool):
            meter = diffrax.TextProgressMeter() if progress else diffrax.NoProgressMeter()
        trajectory, points = _integrate(*problem, save_at, saveat, adjoint, dt0, max_steps, meter)
        if points is not None:
            # How many steps were taken is known when all of them are.
            flow, saved = points
            saved = kept(*saved, steps=saveat.subs.steps)  # pyright: ignore
            found: Any = eqx.filter_jit(flow.points)(*saved)
            trajectory = eqx.tree_at(lambda t: t.saved, trajectory, found, is_leaf=lambda x: x is None)
    if throw and is_concrete(trajectory.result) and not bool(good(trajectory.result)):
        why = ""
        if bool(trajectory.result == RESULTS.max_steps_reached):  # pyright: ignore[reportAttributeAccessIssue]
            how: Any = dict(clock=clock, until=until, solver=solver, coordinates=coordinates)
            why = f" Where it stands, {diagnose(trajectory, risk, **how)}."
        raise RuntimeError(f"integrate: {describe(trajectory.result)}{why}")
    return trajectory


def _method(
    solver: Any,
    controller: Any,
    clock: AbstractClock,
    coordinates: AbstractCoordinates,
    risk: EmpiricalRisk,
    model: Any,
    plain: bool,
) -> tuple[diffrax.AbstractSolver, diffrax.AbstractStepSizeController]:
    """The solver and controller asked for, or the defaults; a flow with kinks that can be followed is."""
    asked = isinstance(solver, Filippov)
    require(
        not asked or knows_pieces(coordinates, model),
        "solver",
        "Filippov follows kinks in Weights and Scores, and of one head; use another solver here",
    )
    require(not asked or plain, "solver", "Filippov saves points at readings only, and has no adjoint of its own")
    follows = (asked or (solver is None and plain)) and has_kinks(coordinates, risk, model)
    inside = as_solver(solver.method if asked else solver, clock)
    default = controller is None
    controller = as_controller(controller, inside, clock)
    if default and isinstance(controller, diffrax.PIDController) and isinstance(coordinates, Weights):
        # What escapes from next to nothing decides log t and the way: it is known to rtol of the start.
        trained = eqx.filter(eqx.filter(model, risk.filter(model)), eqx.is_inexact_array)
        small = jnp.minimum(100.0 * lax.stop_gradient(optimistix.max_norm(trained)), 1.0)
        least = controller.atol * positive_or_one(small)
        controller = eqx.tree_at(lambda c: c.atol, controller, least)
    if not follows:
        return inside, controller
    # Lanes have no `diffeqsolve` around them that tells a root finder its tolerances.
    inside = with_tolerances(inside, controller)
    return Filippov(inside, solver.pieces) if asked else Filippov(inside), controller


@eqx.filter_jit
def _integrate(
    risk, model, clock, until, solver, controller, coordinates, stop, save_at, saveat, adjoint, dt0, max_steps, meter
) -> Any:
    flow, state = make_system(clock, coordinates, risk, model)
    # Non-finite input would be integrated step by rejected step to the end of the budget: do not start.
    finite = all_finite((eqx.filter(risk, eqx.is_array), eqx.filter(model, eqx.is_array), state))
    start = jnp.zeros_like(until)
    end = jnp.where(finite, jnp.maximum(clock.internal(until), start), start)
    asked, dense = wanted(save_at, saveat, clock, start, end)
    subs = [diffrax.SubSaveAt(t1=True), *asked]
    extended = flow.start(state)
    unravel = ravel_pytree(extended[0])[1] if sees_one_vector(solver, controller, extended[0]) else None
    unpack = partial(structured, unravel)

    def pack(extended: PyTree) -> PyTree:
        y, *rest = extended
        return (y if unravel is None else ravel_pytree(y)[0], *rest)

    def field(s: Array, extended: PyTree, args: Any) -> PyTree:
        return pack(flow.field(s, unpack(extended), args))

    def stops(s: Any, extended: PyTree, args: Any, **kwargs: Any) -> Array:
        return flow.stops(stop, s, unpack(extended))

    solution = diffrax.diffeqsolve(
        as_terms(flow.field if unravel is None else field, solver),
        solver,
        start,
        end,
        dt0,
        pack(extended),
        stepsize_controller=controller,
        saveat=diffrax.SaveAt(subs=subs, solver_state=isinstance(solver, MultiplierNewton), dense=dense),
        adjoint=adjoint,
        event=None if stop is None and not risk.opaque else diffrax.Event(stops),
        max_steps=max_steps,
        throw=False,
        progress_meter=meter,
    )
    end_s, *more_s = solution.ts  # pyright: ignore
    end_y, *more_y = solution.ys  # pyright: ignore
    last = end_s[0], unpack(jax.tree.map(lambda x: x[0], end_y))
    more = [(ts, jax.vmap(unpack)(ys)) for ts, ys in zip(more_s, more_y, strict=True)]
    saved = None if save_at is None else more[0]
    result = RESULTS.where(finite, RESULTS.promote(solution.result), RESULTS.nonfinite_data)
    known = None
    if isinstance(solver, MultiplierNewton):
        # Its multipliers are a state; read off the weights they would be noise far out.
        known = solver.scaled_gradient(flow, last[0], last[1], solution.solver_state)  # pyright: ignore
    trajectory = flow.trajectory(last[0], last[1], saved, result, solution.stats, known)
    if dense:
        curve = DenseOutput(flow, solution.interpolation, last[0], unravel)
        trajectory = eqx.tree_at(lambda t: t.dense, trajectory, curve, is_leaf=lambda x: x is None)
    return trajectory, None if saveat is None or not asked else (flow, more[0])


@eqx.filter_jit
def _slide(
    risk, model, clock, until, solver, controller, coordinates, stop, save_at, dt0, max_steps, progress
) -> Trajectory:
    """The piece that a flow is on goes on from step to step, and stopping rules look at it: steps of a lane."""
    drive = Drive(solver, controller, stop, max_steps, print if progress else None)
    lane = drive.start(
        risk, model, clock=clock, coordinates=coordinates, until=until, save_at=save_at, dt0=dt0
    )  # fmt: skip
    return drive.trajectory(drive.run(lane))
