"""What only a limit of a linear network has, and the sentence that it prints."""

from enum import IntEnum
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxflow._core import AbstractPrinted, Code, Outcome
from jaxflow.limits.closed_form import ClosedForm
from jaxflow.limits.limit import AbstractFacts, Limit, LimitKind, bound_of, gaps_of, precision_note, unknown, when_of
from jaxflow.theory import InterpolationProgram
from jaxflow.trajectory import describe


class ErrorSource(IntEnum):
    r"""The source of the error of a limit point.

    - `none`: nothing; the error is +inf, or NaN where there is no point.
    - `pairs`: the point solves the equation for $\nu=-\int r\,dt$ by which two layers move, from any start
      (`jaxflow.theory.pairs`), by Newton's method from the flow's end; the error is its bound.
    - `program`: the theorem of `prediction` applies, and the point is its program's solution; the error is that of
      `InterpolationProgram.error`.
    - `tolerances`: the flow followed at several tolerances (`jaxflow.limits.regression_gears.continued`): an estimate.
    - `distance`: the point is the flow's own end, which is further from such a solution than the error of a flow; the
      error is that distance.
    """

    none = 0
    pairs = 1
    program = 2
    tolerances = 3
    distance = 4


class Beyond(AbstractPrinted):
    """The hard-margin flow beyond the end of the exact one, of more than two layers: `growth` of log ρ, how far the
    direction `turned` in norm, and an estimate of its `error` (see `jaxflow.flow.HardMarginPath`). Zero, and NaN, where
    it was not followed."""

    growth: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    turned: Float[Array, ""] = eqx.field(default_factory=unknown)
    error: Float[Array, ""] = eqx.field(default_factory=unknown)


class NetworkFacts(AbstractFacts):
    r"""What only a limit of a linear network has.

    - `singular_residual`: of (8), Theorem 1 of Yun et al. (2021).
    - `residual`: largest $|f(x_i)-y_i|$ relative to the largest target, where the flow was stopped (regression; NaN
      otherwise).
    - `error`: a bound or an estimate of $\|\beta-\beta^\infty\|/\|\beta^\infty\|$ for `point`; `error_source`: its
      source, see `ErrorSource`. +inf where there is none; NaN for margin losses, whose measure is `excess`.
      `flow_distance`: of the flow's own end (`trajectory.final.model`) from `flow_direction`, relative; zero where they
      are one.
    - `beyond`: of margin losses and more than two layers, see `Beyond`.
    - `closed_form`: for one datum and two layers (Theorems 3 and 5), from data and start alone; else None.
    """

    gap_label: ClassVar[str] = "gap along the flow"
    draws_program: ClassVar[bool] = True
    closed_form: ClosedForm | None
    singular_residual: Float[Array, ""] = eqx.field(default_factory=unknown)
    residual: Float[Array, ""] = eqx.field(default_factory=unknown)
    error: Float[Array, ""] = eqx.field(default_factory=unknown)
    error_source: Code = eqx.field(default_factory=lambda: Code(ErrorSource.none, ErrorSource))
    flow_distance: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    beyond: Beyond = eqx.field(default_factory=Beyond)

    def sentence(self, limit: Limit) -> str:
        outcome, when, end = Outcome(int(limit.outcome)), when_of(limit.trajectory), describe(limit.trajectory.result)
        theorem = limit.prediction.sentence()
        if np.isfinite(float(self.residual)) and limit.kind == LimitKind.point:
            return self._of_a_point(limit, outcome, when, theorem)
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
            claim = f"is a stationary point with KKT residual {residual:.1e} by the flow's multipliers"
        else:
            claim = f"solves the program, certified by {bound_of(limit)}: {numbers}"
        closed = self.closed_form
        beside = ""
        if closed is not None and bool(closed.applies):
            beside = f" The closed form is {float(closed.distance):.1e} from the flow's direction: {closed.sentence()}"
        further = ""
        if self.beyond.growth > 0:
            turned = float(self.beyond.turned)
            further = f" It is that of the hard-margin flow, which turned it by {turned:.1e} from there."
        return f"Support vectors {support}; at {when} the limit direction {claim}.{further} {theorem}{beside}"

    def _of_a_point(self, limit: Limit, outcome: Outcome, when: str, theorem: str) -> str:
        size, excess = float(jnp.linalg.norm(limit.end)), float(limit.excess)
        # One source is a bound, the others are estimates.
        how = "at most" if self.error_source == ErrorSource.pairs else "about"
        known = np.isfinite(float(self.error))
        error = f"relative error {how} {float(self.error):.1e}" if known else "relative error unknown"
        where = f"norm {size:.3g}, {error} (relative residual {float(self.residual):.1e} at {when})"
        if outcome is Outcome.prediction_contradicted:
            return (
                f"The prediction is contradicted: gradient flow interpolates at a point of {where} whose value is "
                f"below the optimum of the program by {-excess:.1e} of it. {theorem}"
            )
        if outcome is not Outcome.limit_point:
            return f"Gradient flow ends at a finite stationary point of {where}; no program describes it."
        parts = [f"Gradient flow interpolates: its limit point has {where}."]
        closed = self.closed_form
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
