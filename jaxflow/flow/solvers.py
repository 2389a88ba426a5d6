"""The default solvers of Diffrax, with a root finder and tolerances that work for these flows (measured; see the
documentation)."""

from collections.abc import Callable
from types import NoneType
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import optimistix
from jaxtyping import Array, Float, PyTree

from jaxflow._core import check_kind, is_concrete, linalg, unknown_name
from jaxflow.flow.clocks import AbstractClock, LogArcLength, RescaledTime

SOLVERS: dict[str, type[diffrax.AbstractSolver]] = {
    name: getattr(diffrax, name)
    for name in (
        *("Euler", "Heun", "Midpoint", "Ralston", "Bosh3", "Tsit5", "Dopri5", "Dopri8"),
        *("ImplicitEuler", "Kvaerno3", "Kvaerno4", "Kvaerno5", "KenCarp3", "KenCarp4", "KenCarp5"),
    )
}


def state_norm(extended: PyTree) -> Float[Array, ""]:
    """Root mean square over the coordinates that are not zero, without log t.

    The error of a coordinate that never moves (padding under a mask, dimensions that are filled up with zeros, weights
    of dead units) is exactly zero. A mean over all coordinates would allow those that move a larger error.

    log t follows from the state, with rates of the order of the path's length. In the error estimate it limits the
    steps wherever the selection changes (measured: 2,000 steps without passing the change, against 46).

    NaN counts as infinity: a step that is too long may end at infinity, where Diffrax's controller divides an infinite
    error by an infinite state. After an error of NaN it accepted no step to the end of the budget (6 of 60 logistic
    regressions of separable data).
    """
    moving = sum(jnp.count_nonzero(x) for x in jax.tree.leaves(extended[0]))
    size = optimistix.two_norm(extended[0]) / jnp.sqrt(jnp.maximum(moving, 1))
    return jnp.where(jnp.isnan(size), jnp.inf, size)


def root_finder() -> optimistix.AbstractRootFinder:
    """Newton's method to the tolerances of the step.

    Diffrax's default, VeryChord, rejects half of its steps on these flows and takes up to five times as many
    (1,617 + 1,604 rejected against 352 + 5, same error, on a two-layer diagonal network).
    """
    return diffrax.with_stepsize_controller_tols(optimistix.Newton)(linear_solver=linalg.LU())


def as_solver(solver: diffrax.AbstractSolver | str | None, clock: AbstractClock) -> diffrax.AbstractSolver:
    """A solver from a solver, its name, or None for the clock's default.

    Defaults, by measurement (see "Which clock, which solver" in the documentation): Kvaerno5 in `LogArcLength`, which
    is stiff, and in `RescaledTime` below α = e^(−75), with one Jacobian a step; Tsit5 in every other clock. For an
    implicit solver `root_finder()` replaces Diffrax's default root finder, and the same factorisation one system at a
    time replaces Lineax's default linear solver (see `jaxflow._core.linalg`).

    **Raises:** `ValueError` with the nearest name.
    """
    check_kind("clock", clock, AbstractClock, "a clock")
    if solver is None:
        if isinstance(clock, RescaledTime) and _is_stiff(clock):
            # The step's own tolerances, written out: a lane's root finder is not told them.
            return diffrax.Kvaerno5(root_finder=linalg.chord(rtol=1e-9, atol=1e-5))
        chosen = diffrax.Kvaerno5() if isinstance(clock, LogArcLength) else diffrax.Tsit5()
    elif isinstance(solver, str):
        names = {name.lower(): value for name, value in SOLVERS.items()}
        if solver.lower() not in names:
            raise unknown_name("solver", solver, SOLVERS)
        chosen = names[solver.lower()]()
    else:
        check_kind("solver", solver, diffrax.AbstractSolver, "a solver of Diffrax or the name of one")
        chosen = solver
    if isinstance(chosen, diffrax.AbstractImplicitSolver) and isinstance(chosen.root_finder, diffrax.VeryChord):
        return eqx.tree_at(lambda s: s.root_finder, chosen, root_finder())
    finder = getattr(chosen, "root_finder", None)
    if isinstance(getattr(finder, "linear_solver", None), lineax.AutoLinearSolver):
        return eqx.tree_at(lambda s: s.root_finder.linear_solver, chosen, linalg.LU())
    return chosen


def as_controller(
    controller: diffrax.AbstractStepSizeController | None,
    solver: diffrax.AbstractSolver,
    clock: AbstractClock | None = None,
) -> diffrax.AbstractStepSizeController:
    """The given controller, or a PID controller; for implicit solvers `state_norm` replaces Diffrax's default norm.

    Implicit solvers are used where only the end of the path matters, which is attracting: rtol 1e-4. Explicit ones
    follow the path: rtol 1e-8, which keeps conserved quantities to 1e-6 over log-time runs. `RescaledTime` is used with
    logarithms of weights, whose *absolute* error is the relative error of a weight: atol 1e-5, and rtol such that
    logarithms of size 1e4 keep that too. A step below the smallest normal number ends the integration
    (`dt_min_reached`).
    """
    check_kind("solver", solver, diffrax.AbstractSolver, "a solver of Diffrax")
    kinds = (diffrax.AbstractStepSizeController, NoneType)
    check_kind("controller", controller, kinds, "a step size controller of Diffrax")
    check_kind("clock", clock, (AbstractClock, NoneType), "a clock")
    implicit = isinstance(solver, diffrax.AbstractImplicitSolver)
    if implicit and isinstance(controller, diffrax.PIDController) and controller.norm is optimistix.rms_norm:
        # Diffrax's default norm is the caller's saying nothing about it.
        return eqx.tree_at(lambda c: c.norm, controller, state_norm)
    if controller is not None:
        return controller
    if isinstance(clock, RescaledTime):
        rtol, atol = 1e-9 if implicit or _is_stiff(clock) else 1e-6, 1e-5
    else:
        rtol = max(1e-4 if implicit else 1e-8, float(jnp.finfo(jnp.result_type(float)).eps) ** 0.5)
        atol = 1e-2 * rtol
    norm = state_norm if implicit else optimistix.rms_norm
    # A field without a meaning where a step begins rejects every step, each a fifth of the one before: it ends once
    # steps are no normal numbers, after 450 of them, whatever the budget is. A batch waits for that lane.
    least = float(jnp.finfo(jnp.result_type(float)).tiny)
    how: Any = dict(pcoeff=0.3, icoeff=0.4, norm=norm, dtmin=least, force_dtmin=False)
    return diffrax.PIDController(rtol=rtol, atol=atol, **how)


def with_tolerances(
    solver: diffrax.AbstractSolver, controller: diffrax.AbstractStepSizeController
) -> diffrax.AbstractSolver:
    """The solver as `diffeqsolve` would run it: a root finder that uses the controller's tolerances receives them.

    For lanes, which run without `diffeqsolve`.

    **Raises:** `ValueError` where the root finder needs tolerances and the controller has none.
    """
    if not isinstance(solver, diffrax.AbstractImplicitSolver) or eqx.is_array_like(solver.root_finder.rtol):
        return solver
    if not isinstance(controller, diffrax.AbstractAdaptiveStepSizeController):
        raise ValueError(
            f"controller: the root finder takes its tolerances from it, and {type(controller).__name__} has none; "
            "give the root finder its own"
        )
    given = (controller.rtol, controller.atol, controller.norm)
    return eqx.tree_at(lambda s: (s.root_finder.rtol, s.root_finder.atol, s.root_finder.norm), solver, given)


def sees_one_vector(
    solver: diffrax.AbstractSolver, controller: diffrax.AbstractStepSizeController, coordinates: PyTree
) -> bool:
    """Whether coordinates of one dtype may be integrated as one vector: a step is then made of fewer, longer loops.

    Explicit methods see no structure, nor do controllers whose norm is over all numbers, or over the coordinates. Of K
    and Q of 10 × 10 numbers a step of Tsit5 costs half of what it costs leaf by leaf (23 against 36 µs in a batch of
    16). log t and the arc length stay on their own: a vector with one number more would be copied at each evaluation.
    """
    if not isinstance(solver, diffrax.AbstractERK) or len({x.dtype for x in jax.tree.leaves(coordinates)}) != 1:
        return False
    if isinstance(controller, diffrax.PIDController):
        numbers = all(eqx.is_array_like(x) and jnp.ndim(x) == 0 for x in (controller.rtol, controller.atol))
        return numbers and controller.norm in (optimistix.rms_norm, state_norm)
    return isinstance(controller, diffrax.ConstantStepSize)


class _Defined(eqx.Module):
    """A field that is NaN where it has overflown.

    Diffrax's controllers shorten a trial step that ends at NaN by the largest factor. At infinity they divide an
    infinite error by an infinite state, and the step is NaN from there on, rejected to the end of the budget.
    """

    field: Callable[[Any, PyTree, Any], PyTree]

    def __call__(self, s: Any, state: PyTree, args: Any) -> PyTree:
        return jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.nan), self.field(s, state, args))


def as_terms(field: Any, solver: diffrax.AbstractSolver) -> Any:
    """The vector field as the terms of this solver: IMEX methods take all of it implicitly, and explicit ones are
    told where it has no meaning. (Implicit stages that overflow have failed already.)"""
    term = diffrax.ODETerm(_Defined(field) if isinstance(solver, diffrax.AbstractERK) else field)
    if solver.term_structure is diffrax.AbstractTerm:
        return term
    return diffrax.MultiTerm(diffrax.ODETerm(_zero), term)


def _is_stiff(clock: RescaledTime) -> bool:
    """Whether stages are so far apart that the learned weights' own time scale is short against them."""
    # The rates of learned weights are of the order of log(1/α): explicit methods took fewer steps down to α = 1e-32.
    return not is_concrete(clock.log_alpha) or bool(jnp.any(clock.log_alpha < -75.0))


def _zero(s: Any, state: Any, args: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, state)
