"""What `find_limit` returns for linear networks, and the sentence that it prints."""

from enum import IntEnum
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import Code, Outcome, as_html, is_concrete
from jaxflow.limits.closed_form import ClosedForm
from jaxflow.limits.limit import LimitKind, Rate, bound_of, draw_limit_of, gaps_of, in_words, precision_note, when_of
from jaxflow.margin import Certificate, Solution
from jaxflow.theory import InterpolationProgram, Prediction
from jaxflow.trajectory import Trajectory, describe


class ErrorSource(IntEnum):
    r"""What the error of a limit point was estimated by.

    - `none`: nothing; the error is +inf, or NaN where there is no point.
    - `pairs`: the point solves the equation for $\nu=-\int r\,dt$ by which two layers move, from any start
      (`jaxflow.theory.pairs`), by Newton's method from the flow's end; the error is its bound.
    - `program`: the theorem of `prediction` applies, and the point is its program's solution; the error is that of
      `InterpolationProgram.error`.
    - `tolerances`: the flow followed again at a hundredth of its tolerance (`LinearStaged.continued`): an estimate.
    - `distance`: the flow's own end, which is further from such a solution than flows err; the error is the distance.

    **Example:**

    ```python
    one = jf.data.LinearData(jnp.array([[1.0, 0.5]]), jnp.array([1.5]))
    start = jf.models.DiagonalLinearNetwork((0.1 * jnp.ones(2), 0.3 * jnp.ones(2)))
    found = jf.find_limit(jf.EmpiricalRisk(one, "squared"), start)
    assert found.error_source == jf.limits.ErrorSource.pairs
    ```
    """

    none = 0
    pairs = 1
    program = 2
    tolerances = 3
    distance = 4


class LinearLimit(eqx.Module):
    r"""The limit of gradient flow of a linear network from one start.

    - `kind`: `direction` (classification), `point` (regression) or `none`; `outcome`: one `Outcome`.
    - `direction`: the flow's linear coefficients at margin one `(d,)`; None unless `kind` is `direction`. Never the
      program's: its optimum is `program_solution.primal`. `flow_direction` is that array whatever the kind (at a
      point, the point). `point`: linear coefficients at a finite limit, else None; where an equation for the limit is
      known, the flow's end polished on it, as `error_source` says (its own: `trajectory.final.model`).
    - `selection`: support vectors, Booleans `(n,)`; `selection_status` is `not_applicable`.
    - `certificate`: of the flow's direction, by the better of two lower bounds, its own multipliers and the program's
      dual; `source` names it (of a program that is not convex, and of a point: the flow's own).
      `flow_certificate`: from the flow's own multipliers; `program_solution`: the program solved from the data alone.
      `certificate.duality_gap` of a program with p < 1 is that of its ℓ1 relaxation.
    - `excess`: how far the flow's direction (or point) is above the program's optimum, relative to it; +inf where one
      of the two is missing, and for p < 1. Negative beyond rounding only where the program is not about this flow.
    - `stationarity`: $\|\nabla L\|/\sum|p|$ at the end. `singular_residual`: of (8), Theorem 1.
    - `residual`: largest $|f(x_i)-y_i|$ relative to the largest target, where the flow was stopped (regression; NaN
      otherwise).
    - `error`: of `point`, $\|\beta-\beta^\infty\|/\|\beta^\infty\|$ at most, and `error_source`, what says so: see
      `ErrorSource`. +inf where nothing does; NaN for margin losses, whose measure is `excess`. `flow_distance`: of the
      flow's own end from `coefficients`, relative, zero where they are one.
    - `closed_form`: of one datum and two layers (Theorems 3 and 5), from data and start alone; else None.
    - `prediction`, `rate`, `trajectory`.

    **Example:**

    ```python
    found = jf.find_limit(jf.EmpiricalRisk(linear, "exponential"), network)
    found.direction, found.outcome
    ```
    """

    kind: Code
    outcome: Code
    selection: Bool[Array, " n"]
    selection_status: Code
    coefficients: Float[Array, " d"]
    certificate: Certificate
    flow_certificate: Certificate
    excess: Float[Array, ""]
    program_solution: Solution
    stationarity: Float[Array, ""]
    singular_residual: Float[Array, ""]
    residual: Float[Array, ""]
    error: Float[Array, ""]
    error_source: Code
    flow_distance: Float[Array, ""]
    closed_form: ClosedForm | None
    prediction: Prediction
    rate: Rate
    trajectory: Trajectory

    @property
    def direction(self) -> Float[Array, "*b d"] | None:
        """Linear coefficients at margin one, or None where the limit is no direction."""
        return self._if(LimitKind.direction)

    @property
    def flow_direction(self) -> Float[Array, "*b d"]:
        """`direction` whatever the kind: linear coefficients at margin one, at a point those of the point."""
        return self.coefficients

    @property
    def point(self) -> Float[Array, "*b d"] | None:
        """Linear coefficients at the limit point, or None where there is none."""
        return self._if(LimitKind.point)

    def _if(self, kind: LimitKind) -> Float[Array, "*b d"] | None:
        single = is_concrete(self.kind) and self.kind.value.ndim == 0
        return None if single and int(self.kind) != kind else self.coefficients

    def plot(self) -> Any:
        """A Matplotlib figure: the gap along the flow, and the coefficients beside the program's optimum."""
        return draw_limit_of(self, self.coefficients, "gap along the flow", self.program_solution.primal)

    def __str__(self) -> str:
        return in_words(self, _sentence)

    def _repr_html_(self) -> str:
        return as_html(str(self))


def _sentence(limit: LinearLimit) -> str:
    outcome = Outcome(int(limit.outcome))
    when = when_of(limit.trajectory)
    end = describe(limit.trajectory.result)
    theorem = limit.prediction.sentence()
    if outcome is Outcome.failed:
        return f"Failed: {end} (program: {limit.program_solution.result})."
    if np.isfinite(float(limit.residual)) and limit.kind == LimitKind.point:
        return _point_sentence(limit, outcome, when, theorem)
    if outcome is Outcome.finite_stationary_point:
        return f"Gradient flow ends at a finite stationary point at {when}; no program describes it."
    if outcome is Outcome.infeasible_program:
        return f"At {when} gradient flow stands still, but the program has no solution ({end})."
    numbers = gaps_of(limit)
    if outcome is Outcome.undecided:
        return f"Undecided at {when}: {numbers} ({end}).{precision_note(limit)}"
    if outcome is Outcome.prediction_contradicted:
        return (
            f"The prediction is contradicted: at {when} the flow's direction stands still elsewhere than at the "
            f"optimum of the program: {numbers}. {theorem}"
        )
    support = np.flatnonzero(np.asarray(limit.selection)).tolist()
    if outcome is Outcome.locally_optimal:
        residual = float(limit.flow_certificate.stationarity)
        vouch = f"is a stationary point with KKT residual {residual:.1e} by the flow's multipliers"
    else:
        vouch = f"solves the program, certified by {bound_of(limit)}: {numbers}"
    closed = limit.closed_form
    beside = ""
    if closed is not None and bool(closed.applies):
        beside = f" The closed form is {float(closed.distance):.1e} from the flow's direction: {closed.sentence()}"
    return f"Support vectors {support}; at {when} the limit direction {vouch}. {theorem}{beside}"


def _point_sentence(limit: LinearLimit, outcome: Outcome, when: str, theorem: str) -> str:
    size, excess = float(jnp.linalg.norm(limit.coefficients)), float(limit.excess)
    # One source is a bound, the others are estimates.
    how = "at most" if limit.error_source == ErrorSource.pairs else "about"
    known = np.isfinite(float(limit.error))
    error = f"relative error {how} {float(limit.error):.1e}" if known else "relative error unknown"
    where = f"norm {size:.3g}, {error} (relative residual {float(limit.residual):.1e} at {when})"
    if outcome is Outcome.prediction_contradicted:
        return (
            f"The prediction is contradicted: gradient flow interpolates at a point of {where} whose value is below "
            f"the optimum of the program by {-excess:.1e} of it. {theorem}"
        )
    if outcome is not Outcome.limit_point:
        return f"Gradient flow ends at a finite stationary point of {where}; no program describes it."
    parts = [f"Gradient flow interpolates: its limit point has {where}."]
    closed = limit.closed_form
    if closed is not None and bool(closed.applies):
        parts.append(
            f"The closed form is {float(closed.distance):.1e} from where the flow was stopped: {closed.sentence()}"
        )
    if bool(limit.prediction.applies) and not isinstance(limit.prediction.program, InterpolationProgram):
        # Theorem 6 is about starts that shrink: this start is none of them, and the excess is no error.
        parts.append(f"Its norm exceeds the least by {excess:.1e} of it. {theorem}")
    elif bool(limit.prediction.applies):
        gap = float(limit.certificate.duality_gap)
        parts.append(f"Its value is within {gap:.1e} of the optimum of the program. {theorem}")
    elif closed is None or not bool(closed.applies):
        parts.append(theorem)
        parts.extend([] if closed is None else [closed.sentence()])
    return " ".join(parts)
