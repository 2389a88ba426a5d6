"""Limits of linear networks: a direction or a point, with its program and certificates."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from jaxflow._core import (
    RESULTS,
    Code,
    Outcome,
    compiled_once,
    good,
    one_lane_at_a_time,
    positive_or_one,
    require,
    tree_where,
)
from jaxflow.data import LinearData
from jaxflow.flow import hard_margin_flow
from jaxflow.flow.coordinates.halves import has_pairs
from jaxflow.limits.closed_form import closed_form
from jaxflow.limits.kantorovich import flat
from jaxflow.limits.limit import Limit, LimitKind
from jaxflow.limits.linear_method import LinearStaged
from jaxflow.limits.linear_point import find_point
from jaxflow.limits.method import AbstractMethod, Staged, arguments_of, begun, checked_gap, followed
from jaxflow.limits.model_direction import LARGEST_ERROR, SHARE_OF_GAP
from jaxflow.limits.network_facts import Beyond, NetworkFacts
from jaxflow.limits.outcome import decided
from jaxflow.limits.path import by_gears, out_of_steps
from jaxflow.limits.rate import fit_rate
from jaxflow.limits.saddles import coordinates_that_move, network_at_rest
from jaxflow.limits.self_certificate import better_of, network_bounds
from jaxflow.limits.stages import LOG_LOSS, STATIONARY, Count, Positive, stationarity
from jaxflow.limits.units import in_units, largest_entry
from jaxflow.limits.verdict import ELSEWHERE, judge
from jaxflow.margin import Lp, ProgramResult, Separability, recession_cone, solve
from jaxflow.models import AbstractLinearNetwork, DeepLinearNetwork, DiagonalLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Rule, pairs_of, predict, primal_map, rule_of, singular_residual
from jaxflow.trajectory import Regime, Trajectory


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


_outwards = by_gears(begun, lambda one: conclude_direction(*followed(one), one.problems[0].report))  # pyright: ignore


def conclude_direction(
    risk: EmpiricalRisk,
    model: AbstractLinearNetwork,
    trajectory: Trajectory,
    gap: Positive,
    report: Callable[[str], None] | None = None,
) -> Limit:
    """The limit direction that a trajectory of a margin loss points at; `report`: of the path beyond its end."""
    beyond = Beyond()
    if model.degree > 2:
        trajectory, beyond = _followed_beyond(risk, trajectory, gap, report)
    within, start, inside = in_units(risk, model, trajectory)
    data: Any = risk.data
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
        own_beta = beta / positive_or_one(jnp.min(data.targets * (data.inputs @ beta)))

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
        at_point = (own.stationarity <= gap) & (slack <= gap * jnp.sum(dual))
        certified, contradicted = at_point & positive, jnp.asarray(False)
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
    pairs = pairs_of(model, data.inputs) if data.targets.size == 1 else None
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
            singular_residual=singular_residual(final.model, data, multipliers),
            closed_form=closed_form(risk, model, pairs, own_beta),
            beyond=beyond,
        ),
    )


def _followed_beyond(
    risk: EmpiricalRisk, exact: Trajectory, gap: Positive, report: Callable[[str], None] | None
) -> tuple[Trajectory, Beyond]:
    r"""The path to where the hard-margin flow leads from the end of the exact one: a KKT point of
    $\min\frac12\|\theta\|^2$ s.t. $y_if(x_i)\ge1$, whose multipliers the end has, and the direction of the weights its
    velocity. The exact path where that does not converge.

    Exponents grow like $\rho^L$, and log t with them, to leading order.
    """
    start = exact.final
    theta, unravel = flat(risk, start.model)
    data: Any = risk.data
    degree = start.model.degree
    path = hard_margin_flow(
        lambda row: risk.margins(unravel(row)).reshape(-1),
        theta,
        jnp.asarray(degree, theta.dtype),
        present=jnp.ones(data.targets.size, bool),
        target=SHARE_OF_GAP * gap,
        # Out of steps before, exponents may be large enough.
        idle=start.log_scale >= 0.5 * LOG_LOSS,
        report=report,
    )
    found = path.converged & (path.error <= LARGEST_ERROR)
    length, size = (positive_or_one(jnp.linalg.norm(row)) for row in (theta, path.state.weights))
    unit, grown = path.state.weights / size, path.log_growth
    log_scale, far = start.log_scale * jnp.exp(degree * grown), jnp.log(jnp.abs(start.log_scale)) + degree * grown
    # Of ψ = Σ λ_k ∇q_k(ψ), at the length of θ, and beyond.
    log_push = (degree - 1) * (jnp.log(length / size) + grown) + jnp.log(size)
    end = replace(
        start,
        model=unravel(length * unit),
        log_time=-log_scale,
        log_log_time=far,
        log_arc_length=start.log_arc_length + grown,
        log_norm=start.log_norm + grown,
        log_scale=log_scale,
        log_gradient_norm=log_scale + log_push,
        velocity=eqx.filter(unravel(unit), risk.filter(start.model)),
        multipliers=-data.targets * path.state.multipliers,
    )
    totals = {"num_steps", "num_accepted_steps"} & exact.stats.keys()
    taken = {name: exact.stats[name] + path.steps for name in totals} | {"num_hard_margin_steps": path.steps}
    arrived: Any = RESULTS.event_occurred
    whole = Trajectory(end, exact.saved, Code(Regime.limiting, Regime), arrived, exact.stats)
    return (
        replace(tree_where(found, whole, exact), stats=exact.stats | taken),
        tree_where(found, Beyond(grown, jnp.linalg.norm(unit - theta / length), path.error), Beyond()),
    )


def _separability(data: LinearData, model: AbstractLinearNetwork) -> Code:
    """Of the data, in the coefficients that move."""
    rows = data.targets[:, None] * data.inputs
    if isinstance(model, DiagonalLinearNetwork):
        rows = jnp.where(coordinates_that_move(model)[None, :], rows, 0.0)
    return recession_cone(rows).separability
