"""Limits of linear networks: a direction or a point, with everything that vouches for it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import RESULTS, Code, Outcome, SelectionStatus, good, is_concrete, linalg, require
from jaxflow.data import LinearData
from jaxflow.limits.limit import LimitKind, Rate, bound_of, gaps_of, precision_note, when_of
from jaxflow.limits.linear_method import LinearStaged
from jaxflow.limits.method import AbstractMethod, checked_gap
from jaxflow.limits.progress import Progress
from jaxflow.limits.rate import observed_rate
from jaxflow.limits.stages import at_rest, stationarity
from jaxflow.limits.verdict import judge
from jaxflow.margin import Certificate, CertificateSource, Lp, ProgramResult, Solution, certify, solve
from jaxflow.models import AbstractLinearNetwork, DeepLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import InterpolationProgram, Prediction, Rule, predict, primal_map, rule_of, singular_residual
from jaxflow.trajectory import Trajectory, describe

# Margins this close to the smallest, relative to it, are those of support vectors.
SUPPORT = 1e-3
# The KKT residual at which a point of a program that is not convex is stationary: off-support entries of the flow's
# own direction fall like 1/‖β‖ and are below 1e-8 of the largest at ‖β‖ of 1e100.
KKT = 1e-5
# Residual of the outputs, relative to the targets, at which a regression has reached its limit point.
INTERPOLATES = 1e-13
# An interpolation that misses its targets by `INTERPOLATES` is below the least value by at most that times the sum of
# all |ν_i y_i|, which is of the order of the value, and solved programs are accurate to 1e-10. A value below the
# optimum by more than this is no rounding: the program is not about this flow.
BELOW = -1e-6


class LinearLimit(eqx.Module):
    """The limit of gradient flow of a linear network from one start.

    - `kind`: `direction` (classification), `point` (regression) or `none`; `outcome`: one `Outcome`.
    - `direction`: the flow's linear coefficients at margin one `(d,)`; None unless `kind` is `direction`. Never the
      program's: its optimum is `program_solution.primal`. `flow_direction` is that array whatever the kind (at a
      point, the point). `point`: linear coefficients at a finite limit, else None.
    - `selection`: support vectors, Booleans `(n,)`; `selection_status` is `not_applicable`.
    - `certificate`: of the flow's direction, by the better of two lower bounds, its own multipliers and the program's
      dual; `source` says whose (of a program that is not convex, and of a point: the flow's own).
      `flow_certificate`: from the flow's own multipliers; `program_solution`: the program solved from the data alone.
      `certificate.duality_gap` of a program with p < 1 is that of its ℓ1 relaxation.
    - `excess`: how far the flow's direction (or point) is above the program's optimum, relative to it; +inf where one
      of the two is missing, and for p < 1. Negative beyond rounding only where the program is not about this flow.
    - `stationarity`: $\\|\\nabla L\\|/\\sum|p|$ at the end. `singular_residual`: of (8), Theorem 1.
    - `residual`: largest $|f(x_i)-y_i|$ relative to the largest target (regression; NaN otherwise).
    - `prediction`, `rate`, `trajectory`.
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

    def __str__(self) -> str:
        if not is_concrete(self.kind):
            return "a traced limit"
        if self.kind.value.ndim > 0:
            codes, counts = np.unique(np.asarray(self.outcome), return_counts=True)
            parts = [f"{count} {Outcome(int(code)).name}" for code, count in zip(codes, counts, strict=True)]
            return f"{self.kind.value.size} limits: {', '.join(parts)}"
        return _sentence(self)


def find_linear_limit(
    risk: EmpiricalRisk,
    model: Any,
    *,
    method: Any = None,
    gap: float | None = None,
    max_steps: int = 4096,
    throw: bool = True,
    progress: Any = False,
) -> LinearLimit:
    """`find_limit` for linear networks; arguments and errors are the same."""
    data = risk.data
    if not isinstance(data, LinearData):
        raise ValueError("risk: a linear network needs a risk on LinearData")
    method = LinearStaged() if method is None else method
    require(isinstance(method, AbstractMethod), "method", f"expected a method, got {method!r}")
    data.check()
    risk.check(model)
    require(risk.filter(model) == model.trainable(), "trainable", "the theorems want all layers of the network trained")
    gap = checked_gap(gap, jnp.result_type(data.inputs, float))
    require(max_steps >= 1, "max_steps", f"expected at least 1, got {max_steps}")
    lines = Progress(progress, "find_limit", risk, model)
    limit = _find(risk, model, lines.method(method), gap, max_steps, rule_of(model))
    lines.done(limit)
    if throw and is_concrete(limit.outcome) and bool(limit.outcome == Outcome.failed):
        raise RuntimeError(
            f"find_limit: {describe(limit.trajectory.result)} (program: {limit.program_solution.result}); "
            "pass throw=False to look at the limit"
        )
    return limit


@eqx.filter_jit
def _find(
    risk: EmpiricalRisk, model: Any, method: AbstractMethod, gap: float, max_steps: int, rule: Rule
) -> LinearLimit:
    # As for attention: another rule is another program to compile.
    del rule
    trajectory = method.follow(risk, model, max_steps, gap)
    if risk.loss.margin:
        return conclude_direction(risk, model, trajectory, gap)
    return conclude_point(risk, model, trajectory)


def conclude_direction(
    risk: EmpiricalRisk, model: AbstractLinearNetwork, trajectory: Trajectory, gap: float
) -> LinearLimit:
    """The limit direction that a trajectory of a margin loss points at."""
    final = trajectory.final
    # Corollary 1 asks for a loss below one at some time, and of the start for nothing else.
    prediction = predict(risk, final.model if isinstance(model, DeepLinearNetwork) else model, None)
    program: Any = prediction.program
    read: Any = primal_map(risk, model)
    solution = solve(program)
    multipliers: Any = final.multipliers
    dual = jnp.abs(multipliers)
    # Of ρ and its velocity, the one with the smaller gap; ρ alone where the objective is not convex.
    primal = read(final.model)
    _, moving = eqx.filter_jvp(read, (final.model,), (final.velocity,))
    convex = not isinstance(program.norm, Lp)
    candidates = jnp.stack([_unit(moving) if convex else _unit(primal), _unit(primal)])
    certificates = jax.vmap(lambda rho: certify(program, rho, dual, "flow"))(candidates)
    best = jnp.argmin(certificates.primal_value)
    own: Certificate = jax.tree.map(lambda x: x[best], certificates)
    chosen = candidates[best]
    margins = program.margins(chosen)
    margin = jnp.min(margins)
    positive = (margin > 0) & jnp.isfinite(margin)
    own_primal = chosen / jnp.where(positive, margin, 1.0)
    own_beta = own_primal if program.transform is None else program.coefficients(own_primal)
    if not read.faithful:
        # Theorem 3: ρ lives on the singular values of one datum; β is the network's own.
        beta = final.model.linear_coefficients()
        own_beta = beta / _positive(jnp.min(risk.data.targets * (risk.data.inputs @ beta)))  # pyright: ignore

    ratio = stationarity(trajectory)
    still = at_rest(final, ratio, model.degree)
    followed = good(trajectory.result)
    spent = (trajectory.result == RESULTS.max_steps_reached) | (trajectory.result == RESULTS.max_steps_rejected)
    unsolved = solution.result == ProgramResult.failed
    broken = ~(followed | spent) | (followed & unsolved & ~still)
    verdict = judge(own, certificates.primal_value, candidates, solution, trajectory, gap)
    infeasible = (solution.result == ProgramResult.infeasible) & verdict.stands_still
    if convex:
        certificate, excess = verdict.certificate, verdict.excess
        certified, contradicted = verdict.certified, verdict.contradicted & ~still
        optimal = Outcome.globally_optimal
    else:
        # Stationary points of such a program are many: the best one that a solver found is no yardstick.
        certificate, excess = own, jnp.asarray(jnp.inf)
        certified, contradicted = (own.stationarity <= KKT) & positive, jnp.asarray(False)
        optimal = Outcome.locally_optimal

    outcome = jnp.where(certified, optimal.value, Outcome.undecided.value)
    outcome = jnp.where(infeasible, Outcome.infeasible_program.value, outcome)
    outcome = jnp.where(contradicted, Outcome.prediction_contradicted.value, outcome)
    outcome = jnp.where(followed, outcome, Outcome.undecided.value)
    outcome = jnp.where(still & followed, Outcome.finite_stationary_point.value, outcome)
    outcome = jnp.where(broken, Outcome.failed.value, outcome)
    kind = jnp.where((certified | contradicted) & followed, LimitKind.direction.value, LimitKind.none.value)
    kind = jnp.where(still & followed, LimitKind.point.value, kind)
    kind = jnp.where(broken, LimitKind.none.value, kind)
    return LinearLimit(
        kind=Code(kind, LimitKind),
        outcome=Code(outcome, Outcome),
        selection=positive & (margins <= (1.0 + SUPPORT) * margin),
        selection_status=Code(SelectionStatus.not_applicable, SelectionStatus),
        coefficients=jnp.where(kind == LimitKind.point, final.model.linear_coefficients(), own_beta),
        certificate=certificate,
        flow_certificate=own,
        excess=excess,
        program_solution=solution,
        stationarity=ratio,
        singular_residual=singular_residual(final.model, risk.data, multipliers),  # pyright: ignore
        residual=jnp.asarray(jnp.nan),
        prediction=prediction,
        rate=fit_linear_rate(program, read, solution, own, trajectory, convex),
        trajectory=trajectory,
    )


def conclude_point(risk: EmpiricalRisk, model: AbstractLinearNetwork, trajectory: Trajectory) -> LinearLimit:
    """The limit point that a trajectory of a regression has reached."""
    data: Any = risk.data
    final = trajectory.final
    prediction = predict(risk, model, None)
    program: Any = prediction.program
    rho = primal_map(risk, model)(final.model)
    beta = final.model.linear_coefficients()
    miss = data.inputs @ beta - data.targets
    residual = jnp.max(jnp.abs(miss)) / _positive(jnp.max(jnp.abs(data.targets)))
    if isinstance(program, InterpolationProgram):
        solution = program.solve()
        # The flow's own ν = −∫r dt is what its ρ determines: the least squares solution of ∇Q(ρ) = A^T ν.
        slope = program.norm.slope(rho)
        weights = jnp.abs(slope)
        root = jnp.sqrt(weights / _positive(jnp.max(weights)))
        nu = linalg.lstsq((program.rows * root[None, :]).T, slope * root)
        own = program.certify(rho, nu, CertificateSource.flow)
    else:
        solution = solve(program)
        nu = linalg.lstsq(data.inputs.T, beta)
        own = certify(program, beta, nu, "flow")
    eps = float(jnp.finfo(residual.dtype).eps)
    reached = residual <= max(INTERPOLATES, 100.0 * eps)
    still = at_rest(final, stationarity(trajectory), model.degree)
    spent = (trajectory.result == RESULTS.max_steps_reached) | (trajectory.result == RESULTS.max_steps_rejected)
    broken = ~(good(trajectory.result) | spent | reached)
    outcome = jnp.where(still, Outcome.finite_stationary_point.value, Outcome.undecided.value)
    outcome = jnp.where(reached, Outcome.limit_point.value, outcome)
    # No interpolation is below the least one: where the theorem's hypotheses hold, such a program is a wrong one.
    solved = (solution.result == ProgramResult.optimal) | (solution.result == ProgramResult.inaccurate)
    excess = own.primal_value / _positive(solution.certificate.dual_value) - 1.0
    excess = jnp.where(solved & (solution.certificate.dual_value > 0), excess, jnp.inf)
    contradicted = reached & prediction.applies & (excess < min(BELOW, -1e4 * eps))
    outcome = jnp.where(contradicted, Outcome.prediction_contradicted.value, outcome)
    outcome = jnp.where(broken, Outcome.failed.value, outcome)
    kind = jnp.where((reached | still) & ~broken, LimitKind.point.value, LimitKind.none.value)
    nothing = jnp.full(1, jnp.nan)
    return LinearLimit(
        kind=Code(kind, LimitKind),
        outcome=Code(outcome, Outcome),
        selection=jnp.ones(data.targets.shape, bool),
        selection_status=Code(SelectionStatus.not_applicable, SelectionStatus),
        coefficients=beta,
        certificate=own,
        flow_certificate=own,
        excess=excess,
        program_solution=solution,
        stationarity=stationarity(trajectory),
        singular_residual=jnp.asarray(jnp.nan),
        residual=residual,
        prediction=prediction,
        rate=Rate(jnp.asarray(jnp.nan), jnp.asarray(jnp.nan), nothing, nothing),
        trajectory=trajectory,
    )


def fit_linear_rate(
    program: Any, read: Any, solution: Solution, own: Certificate, trajectory: Trajectory, convex: bool
) -> Rate:
    r"""How the gap of ρ falls with log t along the exact flow; see `Rate`.

    Predicted: $1-\kappa$ for ℓ1, one for ℓ2 and for p < 1, where off-support entries of ρ tend to constants.
    """
    saved: Any = trajectory.saved
    optimum = solution.certificate.primal_value if convex else own.primal_value

    def gap(model: Any) -> Float[Array, ""]:
        rho = read(model)
        return program.norm(rho) / (jnp.min(program.margins(rho)) * optimum) - 1.0

    gaps = jax.vmap(gap)(saved.model)
    return observed_rate(program, solution, saved, gaps)


def _unit(x: Array) -> Array:
    return x / _positive(jnp.max(jnp.abs(x)))


def _positive(x: Array) -> Array:
    return jnp.where(x > 0, x, 1.0)


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
    return f"Support vectors {support}; at {when} the limit direction {vouch}. {theorem}"


def _point_sentence(limit: LinearLimit, outcome: Outcome, when: str, theorem: str) -> str:
    size, excess = float(jnp.linalg.norm(limit.coefficients)), float(limit.excess)
    where = f"norm {size:.3g} (relative residual {float(limit.residual):.1e} at {when})"
    if outcome is Outcome.prediction_contradicted:
        return (
            f"The prediction is contradicted: gradient flow interpolates at a point of {where} whose value is below "
            f"the optimum of the program by {-excess:.1e} of it. {theorem}"
        )
    if outcome is not Outcome.limit_point:
        return f"Gradient flow ends at a finite stationary point of {where}; no program describes it."
    found = f"Gradient flow interpolates: its limit point has {where}"
    if not bool(limit.prediction.applies):
        return f"{found}. {theorem}"
    gap = float(limit.certificate.duality_gap)
    return f"{found} and is within {gap:.1e} of the optimum of the program. {theorem}"
