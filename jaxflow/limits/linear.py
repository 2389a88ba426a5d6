"""Limits of linear networks: a direction or a point, with its program and certificates."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from jaxflow._core import Code, Outcome, compiled_once, good, one_lane_at_a_time, positive_or_one, require
from jaxflow.data import LinearData
from jaxflow.flow.coordinates.halves import has_pairs
from jaxflow.limits.closed_form import closed_direction
from jaxflow.limits.limit import Limit, LimitKind
from jaxflow.limits.linear_method import LinearStaged
from jaxflow.limits.linear_point import find_point
from jaxflow.limits.method import AbstractMethod, Staged, arguments_of, begun, checked_gap, followed
from jaxflow.limits.network_facts import NetworkFacts
from jaxflow.limits.outcome import decided
from jaxflow.limits.path import by_gears, out_of_steps
from jaxflow.limits.rate import fit_rate
from jaxflow.limits.saddles import coordinates_that_move, network_at_rest
from jaxflow.limits.self_certificate import better_of, network_bounds
from jaxflow.limits.stages import STATIONARY, Count, Positive, stationarity
from jaxflow.limits.units import in_units, largest_entry
from jaxflow.limits.verdict import ELSEWHERE, judge
from jaxflow.margin import Lp, ProgramResult, Separability, certify, recession_cone, solve
from jaxflow.models import AbstractLinearNetwork, DeepLinearNetwork, DiagonalLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Rule, predict, primal_map, rule_of, singular_residual
from jaxflow.trajectory import Trajectory

# The KKT residual at which a point of a program that is not convex is stationary: off-support entries of the flow's
# own direction fall like 1/‖β‖ and are below 1e-8 of the largest at ‖β‖ of 1e100.
KKT = 1e-5
# Of complementary slackness, the share of the multipliers times what their margins are above one. Beyond the cap
# margins stay a few over it apart, to 1e-5 where they are of order one; where the least is small against the weights, a
# datum that is not support at all still has a multiplier.
SLACK = 1e-4


def network_call(
    risk: EmpiricalRisk, model: Any, method: Any, gap: float | None, max_steps: int
) -> tuple[Any, Callable[[Any], Limit]]:
    """The method for a linear network, and what finds the limit by it. **Raises:** as `find_limit`."""
    data = risk.data
    if not isinstance(data, LinearData):
        raise ValueError("risk: a linear network needs a risk on LinearData")
    method = LinearStaged() if method is None else method
    require(isinstance(method, AbstractMethod), "method", "expected a method", got=method)
    require(not isinstance(method, Staged), "method", "Staged is for attention; a linear network has LinearStaged")
    data.check()
    risk.check(model)
    require(
        risk.filter(model) == model.trainable(),
        "trainable",
        "the theorems assume that all layers of the network are trained",
    )
    gap = checked_gap(gap, jnp.result_type(data.inputs, float))
    numbers = arguments_of(method, gap, max_steps, data)
    return method, lambda method: _find(risk, model, method, *numbers, rule_of(model))


@one_lane_at_a_time
def _find(risk: EmpiricalRisk, model: Any, method: AbstractMethod, gap: Any, max_steps: Any, rule: Rule) -> Limit:
    if risk.loss.margin and isinstance(method, LinearStaged):
        return _outwards(risk, model, method, gap, max_steps, rule)
    return _by_method(risk, model, method, gap, max_steps, rule)


@compiled_once
def _by_method(
    risk: EmpiricalRisk, model: Any, method: AbstractMethod, gap: Positive, max_steps: Count, rule: Rule
) -> Limit:
    # As for attention: another rule is another program to compile.
    del rule
    if risk.loss.margin:
        return conclude_direction(risk, model, method.follow(risk, model, max_steps, gap), gap)
    return find_point(risk, model, method, gap, max_steps)


_outwards = by_gears(begun, lambda one: conclude_direction(*followed(one)))


def conclude_direction(
    risk: EmpiricalRisk,
    model: AbstractLinearNetwork,
    trajectory: Trajectory,
    gap: Positive,
) -> Limit:
    """The limit direction that a trajectory of a margin loss points at."""
    within, start, inside = in_units(risk, model, trajectory)
    final = trajectory.final
    # Corollary 1 requires a loss below one at some time, and nothing else of the start.
    prediction = predict(risk, final.model if isinstance(model, DeepLinearNetwork) else model, None)
    program: Any = prediction.program
    read: Any = primal_map(risk, model)
    solution = solve(program)
    multipliers: Any = final.multipliers
    dual = jnp.abs(multipliers)
    convex = not isinstance(program.norm, Lp) or program.norm.convex
    certificates, candidates = network_bounds(program, read, final.model, final.velocity, multipliers)
    own, chosen = better_of(program, certificates, candidates)
    margins = program.margins(chosen)
    margin = jnp.min(margins)
    positive = (margin > 0) & jnp.isfinite(margin)
    # Directions closer than this are one, and so are their margins.
    support = positive & (margins <= (1.0 + ELSEWHERE) * margin)
    beta = final.model.linear_coefficients()
    own_beta = chosen if program.transform is None else program.coefficients(chosen)
    if not read.faithful:
        # Theorem 3: ρ lives on the singular values of one datum; β is the network's own.
        own_beta = beta / positive_or_one(jnp.min(risk.data.targets * (risk.data.inputs @ beta)))  # pyright: ignore

    ratio = stationarity(inside.final)
    seems_still = network_at_rest(within.data, start, inside)  # pyright: ignore[reportArgumentType]
    kind_of_data = _separability(within.data, start)  # pyright: ignore[reportArgumentType]
    # Along a channel to infinity gradients are small: only overlapping data have a minimum, or a gradient of zero.
    unmoved = ~jnp.any(ravel_pytree(within.scaled_gradient(start).gradient)[0])
    still = seems_still & ((kind_of_data == Separability.overlapping) | unmoved)
    arrived, spent = good(trajectory.result), out_of_steps(trajectory)
    # Of data that are not separable there is no program to solve, whatever a solver returns.
    unsolved = (solution.result == ProgramResult.failed) & (kind_of_data == Separability.separable)
    broken = ~(arrived | spent) | (arrived & unsolved & ~seems_still)
    verdict = judge(own, certificates.primal_value, candidates, solution, inside, gap, start)
    if convex:
        certificate, excess = verdict.certificate, verdict.excess
        # Where entries mix, a mode as small as the start may be lost among roundings, and the flow at rest without it:
        # such a direction contradicts nothing.
        lost = jnp.asarray(False) if has_pairs(start) else largest_entry(start.layers) ** 2 < STATIONARY
        certified, contradicted = verdict.certified, verdict.contradicted & ~seems_still & ~lost
        optimal = Outcome.globally_optimal
    else:
        # Stationary points of such a program are many: the best one that a solver found is no yardstick.
        certificate, excess = own, jnp.asarray(jnp.inf)
        slack = jnp.sum(dual * (margins / jnp.where(positive, margin, 1.0) - 1.0))
        complementary = slack <= SLACK * jnp.sum(dual)
        # A support vector whose multiplier is small comes to its margin last: the others have to do without it.
        without = certify(program, chosen, jnp.where(support, dual, 0.0), "flow")
        stationary = jnp.maximum(own.stationarity, without.stationarity) <= KKT
        certified, contradicted = stationary & positive & complementary, jnp.asarray(False)
        optimal = Outcome.locally_optimal

    kind, outcome = decided(
        broken=broken,
        rests=still & arrived,
        spent=spent,
        contradicted=contradicted,
        infeasible=(solution.result == ProgramResult.infeasible) & verdict.stands_still,
        certified=certified,
        optimal=optimal,
    )
    # Predicted are 1 - κ for ℓ1, and one for ℓ2 and for p < 1, where off-support entries of ρ tend to constants.
    optimum = solution.certificate.primal_value if convex else own.primal_value

    def gap_of(model: Any) -> Array:
        rho = read(model)
        return program.norm(rho) / (jnp.min(program.margins(rho)) * optimum) - 1.0

    return Limit(
        kind=kind,
        outcome=outcome,
        selection=support,
        flow_direction=jnp.where(kind == LimitKind.point, beta, own_beta),
        end=beta,
        certificate=certificate,
        flow_certificate=own,
        excess=excess,
        program_solution=solution,
        stationarity=ratio,
        prediction=prediction,
        rate=fit_rate(program, solution, trajectory, gap_of),
        trajectory=trajectory,
        details=NetworkFacts(
            singular_residual=singular_residual(final.model, risk.data, multipliers),  # pyright: ignore
            closed_form=closed_direction(risk, model, own_beta),
        ),
    )


def _separability(data: LinearData, model: AbstractLinearNetwork) -> Code:
    """Of the data, in the coefficients that move."""
    rows = data.targets[:, None] * data.inputs
    if isinstance(model, DiagonalLinearNetwork):
        rows = jnp.where(coordinates_that_move(model)[None, :], rows, 0.0)
    return recession_cone(rows).separability
