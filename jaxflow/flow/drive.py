"""Lanes: integrations that stop, continue exactly and are replaced by others, many at a time.

`integrate` is Diffrax's `diffeqsolve`. A lane is the same integration taken apart into steps, on the public
`solver.step` and `controller.adapt_step_size`. Between two steps a lane is plain data: step size and solver state are
part of it, so that continuing is exact (a new `diffeqsolve` would choose a new first step). A test compares both step
by step. Lanes contain no host callback, so that programs built on them can be kept in the persistent compilation cache
(`diffeqsolve` with save points, or with a first step, cannot).
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxflow._core import RESULTS, ScaledGradient, all_finite, check_kind, checked, tree_where
from jaxflow.flow.clocks import AbstractClock
from jaxflow.flow.constraints import leading
from jaxflow.flow.coordinates import AbstractCoordinates
from jaxflow.flow.filippov import Filippov
from jaxflow.flow.multiplier_newton import MultiplierNewton
from jaxflow.flow.saving import check_readings
from jaxflow.flow.solvers import as_terms
from jaxflow.flow.stability import at_stability_limit
from jaxflow.flow.stopping import AbstractStop, Unsaturated
from jaxflow.flow.system import System, make_system
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# Members of an enumeration, whose types Pyright reads as literals.
_RESULTS: Any = RESULTS
# The first step, where Diffrax's rule has none or costs more than a few steps that grow: a hundredth of what is one in
# any of the clocks.
FIRST_STEP = 0.01
# Seconds between two lines of what a long integration says.
EVERY = 1.0


def _promoted(result: Any) -> Any:
    """`RESULTS.promote`. The constant of a method that never fails needs none, which would compile eight programs."""
    if result is diffrax.RESULTS.successful:
        return _RESULTS.successful
    return result if isinstance(result, RESULTS) else _RESULTS.promote(result)


class StepMeter:
    """Called inside a loop with the number of steps so far and what they have reached.

    **Arguments:** `say` receives `line`, a format of the numbers, at most once a second; before the first step `begun`.
    """

    def __init__(self, say: Callable[[str], None], line: str, begun: str | None = None):
        self._say, self._line, self._begun, self._last = say, line, begun or line, -math.inf

    def __call__(self, steps: Any, *reached: Any) -> None:
        now = time.monotonic()
        if now - self._last >= EVERY:
            self._say((self._line if steps else self._begun).format(int(steps), *map(float, reached)))
            self._last = now


class Lane(eqx.Module):
    """One integration under way; under `vmap` every leaf has a leading axis.

    `system` is the problem; s the clock's variable, reached with `state`, to be continued to `s_next` and
    at the end to `end`; `grid` and `saved` the save points and the states there; `stiff_steps`: how many accepted steps
    in a row were as long as stability allows (see `jaxflow.flow.stability`); `least`: the s before which no rule stops
    it; `most`: its own budget of steps, in addition to that of its `Drive`.
    """

    system: System
    s: Float[Array, ""]
    s_next: Float[Array, ""]
    end: Float[Array, ""]
    state: PyTree
    solver_state: PyTree
    controller_state: PyTree
    grid: Float[Array, " m"] | None
    saved: PyTree
    result: Any
    stopped: Bool[Array, ""]
    num_steps: Array
    num_accepted_steps: Array
    num_failed_solves: Array
    stiff_steps: Array
    least: Float[Array, ""]
    most: Int[Array, ""]


def changing(lane: Lane) -> tuple[Any, ...]:
    """The parts of a lane that a step changes; the rest is the problem."""
    return (
        *(lane.s, lane.s_next, lane.state, lane.solver_state, lane.controller_state, lane.saved, lane.result),
        *(lane.stopped, lane.num_steps, lane.num_accepted_steps, lane.num_failed_solves, lane.stiff_steps),
    )


@checked(least={"max_steps": 1})
class Drive(eqx.Module):
    """How lanes are driven: solver, step size controller, stopping rule, budget of steps.

    `always`: a rule that stops a lane at any s; `stop` does so from its `least` s on. `jumps=False`: a step after which
    a query has left the token that had its attention for another one, with nothing in between, is taken again, shorter
    (for attention).

    `report` receives a line once a second while a single lane runs; such a program calls back to the host and is not
    kept in the compilation cache. Written for solvers whose root finder has tolerances of its own, and for controllers
    without jumps.

    **Example:**

    ```python
    from jaxflow.flow import Drive, as_clock, as_controller, as_solver

    clock = as_clock("log_time")
    solver = as_solver("tsit5", clock)
    drive = Drive(solver, as_controller(None, solver))
    lane = drive.start(risk, model, clock=clock, coordinates=jf.Weights(), until=1.0)
    lane = drive.step(lane)  # one step; plain data, from which the path continues exactly
    ```
    """

    solver: diffrax.AbstractSolver
    controller: diffrax.AbstractStepSizeController
    stop: AbstractStop | None = None
    max_steps: int | Int[Array, ""] = 100_000
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)
    always: AbstractStop | None = None
    jumps: bool = eqx.field(static=True, default=True)

    def start(
        self,
        risk: EmpiricalRisk,
        model: Any,
        *,
        clock: AbstractClock,
        coordinates: AbstractCoordinates,
        until: Float[Array, ""] | float,
        save_at: Float[Array, " m"] | None = None,
        dt0: float | None = None,
        idle: Bool[Array, ""] | bool = False,
        least: Float[Array, ""] | float | None = None,
        budget: Int[Array, ""] | int | None = None,
    ) -> Lane:
        """A lane at the start of its path; arguments as those of `integrate`. `least`: a reading of the clock before
        which the rules stop nothing; `budget`: of steps, where it is less than that of the drive.

        Rules are evaluated after each step, also after the first. An `idle` lane takes no step. A lane with NaN or
        infinities in its data has failed before it starts.
        """
        check_kind("risk", risk, EmpiricalRisk, "an EmpiricalRisk")
        check_kind("clock", clock, AbstractClock, "a clock")
        check_kind("coordinates", coordinates, AbstractCoordinates, "coordinates")
        risk.check(model, values=False)
        save_at = check_readings(clock, until, save_at, dt0)
        system, coordinate = make_system(clock, coordinates, risk, model)
        inexact = (eqx.filter(risk, eqx.is_inexact_array), eqx.filter(model, eqx.is_inexact_array))
        finite = all_finite((*inexact, coordinate))
        s = jnp.zeros(())
        end = jnp.maximum(clock.internal(until), s)
        state = system.start(coordinate)
        terms = as_terms(system.field, self.solver)
        order: Any = self.solver.error_order(terms)
        s_next, controller_state = self.controller.init(terms, s, end, state, dt0, None, self.solver.func, order)
        # Of a first step that is a number of Python a controller keeps such numbers, which no loop carries.
        controller_state = jax.tree.map(jnp.asarray, controller_state)
        # The rule looks at the field where one long step would lead, which may be nowhere: its step is then zero, and
        # every step after it. Seen in log time at a saddle.
        s_next = jnp.minimum(jnp.where(s_next > s, s_next, s + FIRST_STEP), end)
        solver_state = self.solver.init(terms, s, s_next, state, None)
        grid, saved = None, None
        if save_at is not None:
            grid = jnp.clip(clock.internal(save_at), s, end)
            unreached = jax.tree.map(lambda x: jnp.full(grid.shape + x.shape, jnp.inf, x.dtype), state)
            saved = tree_where(grid <= s, jax.tree.map(lambda x: x[None], state), unreached)
        zero, begins = jnp.zeros((), int), s if least is None else jnp.minimum(clock.internal(least), end)
        return Lane(
            system=system,
            s=s,
            s_next=s_next,
            end=end,
            state=state,
            solver_state=solver_state,
            controller_state=controller_state,
            grid=grid,
            saved=saved,
            result=_RESULTS.where(finite, _RESULTS.successful, _RESULTS.nonfinite_data),
            stopped=jnp.asarray(idle),
            num_steps=zero,
            num_accepted_steps=zero,
            num_failed_solves=zero,
            stiff_steps=zero,
            least=begins,
            most=jnp.asarray(jnp.iinfo(zero.dtype).max if budget is None else budget, zero.dtype),
        )

    def running(self, lane: Lane) -> Bool[Array, ""]:
        """Whether there is a step to take."""
        healthy = lane.result == _RESULTS.successful
        within = (lane.num_steps < self.max_steps) & (lane.num_steps < lane.most)
        return healthy & ~lane.stopped & (lane.s < lane.end) & within

    def step(self, lane: Lane) -> Lane:
        """One step, accepted or rejected."""
        terms = as_terms(lane.system.field, self.solver)
        y, y_error, dense_info, solver_state, solver_result = self.solver.step(
            terms, lane.s, lane.s_next, lane.state, None, lane.solver_state, made_jump=False
        )
        # A step so long that the field has no meaning there, or whose stages have no solution, is one to be rejected.
        y_error = jax.tree.map(lambda x: jnp.where(jnp.isnan(x), jnp.inf, x), y_error)
        solved = all_finite(y_error)
        if not self.jumps:
            jumped = _jumped(lane, y)
            y_error = jax.tree.map(lambda x: jnp.where(jumped, jnp.inf, x), y_error)
        order: Any = self.solver.error_order(terms)
        accepted, s, s_next, jumps, controller_state, controller_result = self.controller.adapt_step_size(
            lane.s, lane.s_next, lane.state, y, None, y_error, order, lane.controller_state
        )
        if jumps is not False:
            raise ValueError("controller: lanes take no controller with jumps")
        kept, solver_state = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old), (y, solver_state), (lane.state, lane.solver_state)
        )
        s = jnp.minimum(s, lane.end)
        # Steps end where the path does; what would leave a sliver of 100 rounding errors goes there at once.
        near_end = s_next > lane.end - 100 * jnp.finfo(lane.end.dtype).eps * lane.end
        s_next = jnp.where(near_end, jnp.where(accepted, lane.end, s + 0.5 * (lane.end - s)), s_next)
        saved = lane.saved
        if lane.grid is not None:
            path = self.solver.interpolation_cls(t0=lane.s, t1=lane.s_next, **dense_info)
            passed = jnp.asarray(accepted) & (lane.grid > lane.s) & (lane.grid <= lane.s_next)
            saved = tree_where(passed, jax.vmap(path.evaluate)(lane.grid), saved)
        limited = at_stability_limit(self.solver, dense_info)
        stiff = jnp.where(accepted, jnp.where(limited, lane.stiff_steps + 1, 0), lane.stiff_steps)
        result = _RESULTS.where(jnp.asarray(accepted), _promoted(solver_result), _RESULTS.successful)
        result = _RESULTS.where(result == _RESULTS.successful, _promoted(controller_result), result)
        stops = (s >= lane.least) & self._stops(self.stop, lane, s, kept, solver_state, stiff)
        if self.always is not None:
            stops = stops | self._stops(self.always, lane, s, kept, solver_state, stiff)
        counts = (lane.num_steps + 1, lane.num_accepted_steps + accepted, lane.num_failed_solves + ~solved, stiff)
        moved = (s, s_next, kept, solver_state, controller_state, saved, result, stops, *counts)
        return eqx.tree_at(changing, lane, moved, is_leaf=lambda x: x is None)

    def run(self, lane: Lane) -> Lane:
        """Steps to the end of the path."""
        moving, fixed = eqx.partition(lane, eqx.is_array)
        meter, clock = None, type(lane.system.clock).__name__
        if self.report is not None:
            meter = StepMeter(self.report, clock + ": {} steps, s = {:.4g}", f"following the flow in {clock}")

        def step(moving: Any) -> Any:
            lane = eqx.combine(moving, fixed)
            if meter is not None:
                jax.debug.callback(meter, lane.num_steps, lane.s)
            return eqx.filter(self.step(lane), eqx.is_array)

        moving = jax.lax.while_loop(lambda m: self.running(eqx.combine(m, fixed)), step, moving)
        return eqx.combine(moving, fixed)

    def trajectory(self, lane: Lane) -> Trajectory:
        """The trajectory of a finished lane."""
        result = _RESULTS.where(lane.stopped, _RESULTS.event_occurred, _RESULTS.max_steps_reached)
        result = _RESULTS.where(~lane.stopped & (lane.s >= lane.end), _RESULTS.successful, result)
        result = _RESULTS.where(lane.result == _RESULTS.successful, result, lane.result)
        saved = None
        if lane.grid is not None:
            saved = (jnp.where(lane.grid <= lane.s, lane.grid, jnp.inf), lane.saved)
        stats = {
            "num_steps": lane.num_steps,
            "num_accepted_steps": lane.num_accepted_steps,
            "num_rejected_steps": lane.num_steps - lane.num_accepted_steps,
            "num_failed_solves": lane.num_failed_solves,
        }
        if isinstance(self.solver, Filippov):
            stats |= self.solver.stats(lane.solver_state)
        known = self._known(lane.system, lane.s, lane.state, lane.solver_state)
        return lane.system.trajectory(lane.s, lane.state, saved, result, stats, known)

    def _stops(
        self, stop: AbstractStop | None, lane: Lane, s: Array, state: PyTree, solver_state: PyTree, stiff: Array
    ) -> Array:
        system, more = lane.system, {}
        if isinstance(self.solver, MultiplierNewton):
            more["certifies"] = partial(self.solver.certifies, system, s, state, solver_state)
        known = self._known(system, s, state, solver_state)
        return system.stops(stop, s, state, known, stiff_steps=stiff, **more)

    def _known(self, system: System, s: Array, state: PyTree, solver_state: PyTree) -> ScaledGradient | None:
        if not isinstance(self.solver, MultiplierNewton | Filippov):
            return None
        return self.solver.scaled_gradient(system, s, state, solver_state)


def _jumped(lane: Lane, after: PyTree) -> Array:
    """Whether a step has passed over the change of a token. What pushes for it or against it is felt only meanwhile:
    no stage need have seen it, and no estimate of the error tells."""

    data: Any = lane.system.risk.data

    def attention(s: Array, state: PyTree) -> Array:
        system = lane.system
        return system.coordinates.attention(system.context, system.unpack(s, state)[0], data)

    top, had = leading(attention(lane.s, lane.state), data)
    has = jnp.sum(attention(lane.s_next, after), axis=-1, where=top)
    return jnp.any((had >= Unsaturated().share) & (has <= 1.0 - Unsaturated().share))
