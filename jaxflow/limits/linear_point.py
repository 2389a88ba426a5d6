"""Limit points of regression: the flow's end, polished where an equation for it is known, with its error."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import Code, linalg, positive_or_one, tree_where
from jaxflow.limits.closed_form import closed_form, relative_distance
from jaxflow.limits.limit import Limit
from jaxflow.limits.linear_method import LinearStaged
from jaxflow.limits.method import AbstractMethod
from jaxflow.limits.network_facts import ErrorSource, NetworkFacts
from jaxflow.limits.outcome import decided
from jaxflow.limits.path import broken
from jaxflow.limits.regression_gears import continued
from jaxflow.limits.saddles import network_at_rest
from jaxflow.limits.stages import Count, Positive, stationarity
from jaxflow.limits.units import in_units, units_of
from jaxflow.limits.verdict import ELSEWHERE, above, is_solved
from jaxflow.losses import Squared
from jaxflow.margin import CertificateSource, ProgramResult, Solution, certify, solve
from jaxflow.models import AbstractLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import AbstractPairs, InterpolationProgram, Prediction, pair_limit, pairs_of, predict, primal_map

# How far a flow's end may be from the optimum of a theorem's program, relative to it, in distance and in value. Flows
# at rtol 1e-9 are off by 2e-7 at most (100 instances, α from 1e-4 to 10).
BRANCH = 1e-5


class Known(eqx.Module):
    """What is known of a limit point before the flow: the theorem, its program solved, and the pairs (see
    `jaxflow.theory.pairs`). `by_program`: the theorem applies to this start and its program names the point."""

    prediction: Prediction
    solution: Solution
    pairs: AbstractPairs | None
    by_program: Bool[Array, ""]


def known_of(risk: EmpiricalRisk, model: AbstractLinearNetwork) -> Known:
    """`Known` of a start."""
    prediction = predict(risk, model, None)
    program: Any = prediction.program
    data: Any = risk.data
    pairs = pairs_of(model, data.inputs) if isinstance(risk.loss, Squared) else None
    if not isinstance(program, InterpolationProgram):
        return Known(prediction, solve(program), pairs, jnp.asarray(False))
    solution = program.solve()
    # A decomposition of one datum alone does not determine the rest of β.
    faithful = jnp.asarray(primal_map(risk, model).faithful)
    by_program = prediction.applies & (solution.result == ProgramResult.optimal) & faithful
    return Known(prediction, solution, pairs, by_program)


def find_point(
    risk: EmpiricalRisk,
    model: AbstractLinearNetwork,
    method: AbstractMethod,
    gap: Positive,
    max_steps: Count,
) -> Limit:
    """Follows a regression to its limit point: once where an equation for it is known, else until `gap` is met."""
    known = known_of(risk, model)
    units = units_of(risk, model) if isinstance(method, LinearStaged) and method.usual_lengths else None
    within, start = (risk, model) if units is None else units.inward(risk, model)
    if known.pairs is None and isinstance(method, LinearStaged):
        runs = method.regression(within, start)
        path, spread = continued(runs, within, start, max_steps, gap, known.by_program)
    else:
        path, spread = method.follow(within, start, max_steps, gap), jnp.asarray(jnp.inf)
    trajectory = path if units is None else units.outward(path, model)
    within, start, inside = in_units(risk, model, trajectory)
    data: Any = risk.data
    final = trajectory.final
    prediction, solution = known.prediction, known.solution
    program: Any = prediction.program
    rho = primal_map(risk, model)(final.model)
    beta = final.model.linear_coefficients()
    miss = data.inputs @ beta - data.targets
    residual = jnp.max(jnp.abs(miss)) / positive_or_one(jnp.max(jnp.abs(data.targets)))
    if isinstance(program, InterpolationProgram):
        # The flow's own ν = −∫r dt is what its ρ determines: the least squares solution of ∇Q(ρ) = A^T ν.
        slope = program.norm.slope(rho)
        weights = jnp.abs(slope)
        root = jnp.sqrt(weights / positive_or_one(jnp.max(weights)))
        nu = linalg.lstsq((program.rows * root[None, :]).T, slope * root)
        own = program.certify(rho, nu, CertificateSource.flow)
    else:
        nu = linalg.lstsq(data.inputs.T, beta)
        own = certify(program, beta, nu, "flow")
    eps = float(jnp.finfo(residual.dtype).eps)
    # A path ends at a few roundings of the outputs, which have some hundred, each of the size of what they add up.
    summed = jnp.max(jnp.abs(data.inputs) @ jnp.abs(beta) + jnp.abs(data.targets))
    reached = jnp.max(jnp.abs(miss)) <= 400.0 * eps * summed
    still = network_at_rest(within.data, start, inside)  # pyright: ignore[reportArgumentType]
    # No interpolation is below the least one: where the theorem's hypotheses hold, such a program is a wrong one.
    # Targets that are missed lower the value by that share times the sum of all |ν_i y_i|, which is of its order,
    # and solved programs are accurate to 1e-10.
    excess = jnp.where(is_solved(solution), above(own.primal_value, solution.certificate.dual_value), jnp.inf)
    contradicted = reached & prediction.applies & (excess < -max(0.1 * BRANCH, 1e4 * eps))
    failed = broken(trajectory) & ~reached
    kind, outcome = decided(broken=failed, interpolates=reached, rests=still, contradicted=contradicted)
    # What has not come to rest is no limit, whatever two runs agree on.
    spread = jnp.where(reached | still, spread, jnp.inf)
    point, error, source = polished(risk, model, final.model, known, spread, reached)
    return Limit(
        kind=kind,
        outcome=outcome,
        selection=jnp.ones(data.targets.shape, bool),
        flow_direction=point,
        end=point,
        certificate=own,
        flow_certificate=own,
        excess=excess,
        program_solution=solution,
        stationarity=stationarity(inside.final),
        prediction=prediction,
        trajectory=trajectory,
        details=NetworkFacts(
            residual=residual,
            error=error,
            error_source=Code(source, ErrorSource),
            flow_distance=relative_distance(beta, point),
            closed_form=closed_form(risk, model, known.pairs, beta),
        ),
    )


def polished(
    risk: EmpiricalRisk,
    start: AbstractLinearNetwork,
    end: AbstractLinearNetwork,
    known: Known,
    spread: Float[Array, ""],
    reached: Bool[Array, ""],
) -> tuple[Float[Array, " d"], Float[Array, ""], Int[Array, ""]]:
    """The limit point by the best equation that is known for it, its error, and the source of that.

    The flow chooses the branch: where the equation's solution is further from its end than flows err, the
    end itself is the answer and the distance its error. An end that has not `reached` the data is no answer to polish.
    """
    data: Any = risk.data
    beta, branch = end.linear_coefficients(), BRANCH
    if known.pairs is not None:
        found = pair_limit(known.pairs, start, data.targets, known.pairs.dual_of(end.layers))
        point, error, source = found.coefficients, found.error, ErrorSource.pairs
        # The equation is exact and has one root: digits are all that can be missing.
        usable, branch = jnp.isfinite(found.error), ELSEWHERE
    elif isinstance(known.prediction.program, InterpolationProgram):
        program = known.prediction.program
        point = program.coefficients(known.solution.primal)
        error, source = program.error(known.solution.primal, known.solution.dual), ErrorSource.program
        usable = known.by_program & jnp.isfinite(error)
    else:
        # The program is no more than what limits tend to as the start gets small.
        point, error, source = beta, spread, ErrorSource.tolerances
        usable = jnp.asarray(False)
    usable, apart = usable & reached, relative_distance(beta, point)
    near = apart <= max(branch, 100.0 * float(jnp.finfo(beta.dtype).eps) ** 0.5)
    estimated = jnp.isfinite(spread)
    other = jnp.where(estimated, ErrorSource.tolerances, jnp.where(usable, ErrorSource.distance, ErrorSource.none))
    otherwise = jnp.where(estimated, spread, jnp.where(usable, apart, jnp.inf))
    return tree_where(usable & near, (point, error, jnp.asarray(source)), (beta, otherwise, other))
