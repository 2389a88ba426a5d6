"""The flow's direction against the predicted program: certified, contradicted, or still open."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Inexact

from jaxflow._core import positive_or_one, tree_where
from jaxflow.limits.stages import Positive, kept, left_by_pairs
from jaxflow.margin import Certificate, ProgramResult, Solution
from jaxflow.trajectory import Trajectory

# A flow stands elsewhere where its direction is this far above the optimum and stays there: velocity and weights differ
# by no more than this, at an arc length of at least its inverse, where a start of order one is no larger share of the
# weights. At log ρ a component with slack c = 2(1 - κ) has decayed to ρ^-c of the direction; velocity and weights then
# differ by c of it, in the excess as in the direction, and it adds at most c/2 to the excess. A component that passes
# for standing still is therefore below: only a limit that is not the program's is above.
ELSEWHERE = 1e-3


class Verdict(eqx.Module):
    r"""What is known of a flow's direction D and of the program that was predicted for it.

    - `certificate`: of D. The primal value is the flow's, $N(D)/\mu$; the dual value the larger of two lower bounds,
      the flow's own and the program's, and `source` names it; feasibility and stationarity are the flow's.
    - `excess`: $N(D)/(\mu\cdot\text{optimum})-1$ with the program's certified lower bound for the optimum; +inf where
      one of the two is missing.
    - `certified`: the program is solved, and both its own gap and the excess are at most what was asked for.
    - `stands_still`: velocity and weights have one direction, to 1e-3, at an arc length of 1e3 or more, and no pair
      of diagonal weights leaves it.
    - `contradicted`: the program is solved, and the flow stands still elsewhere.
    """

    certificate: Certificate
    excess: Float[Array, ""]
    certified: Bool[Array, ""]
    stands_still: Bool[Array, ""]
    contradicted: Bool[Array, ""]


def judge(
    own: Certificate,
    values: Float[Array, "2"],
    directions: Inexact[Array, "2 ..."],
    solution: Solution,
    trajectory: Trajectory,
    gap: Positive,
    start: Any,
) -> Verdict:
    r"""Compares the flow's direction with a solved program; a program's own optimality proves nothing about the flow.

    The flow contradicts a program where, with $e(D)=N(D)/(\mu(D)\cdot\text{optimum})-1$,

    $$e(\text{weights})>10^{-3},\qquad|e(\text{velocity})-e(\text{weights})|\le10^{-3}\,e(\text{weights}),$$

    and it stands still. Two directions that satisfy no constraint of the program (values of
    +inf) agree too.

    **Arguments:** `own`: the flow's certificate, `Certificate.none` while attention has not settled;
    `values` and `directions`: $N(D)/\mu(D)$ and D itself, of any size, for the velocity and for the weights;
    `solution`: of the program; `gap`: what counts as certified; `start`: the first model.
    """
    theirs = solution.certificate
    solved = is_solved(solution) & (jnp.abs(theirs.duality_gap) <= gap)
    excess, velocity, weights = (above(value, theirs.dual_value) for value in (own.primal_value, *values))
    still = _stand_still(directions) & (trajectory.final.log_arc_length >= -np.log(ELSEWHERE))
    still = still & ~left_by_pairs(trajectory.final, kept(start))
    nowhere = jnp.isinf(weights)
    apart = jnp.abs(velocity - jnp.where(nowhere, 0.0, weights))
    stays = jnp.where(nowhere, jnp.isinf(velocity), apart <= ELSEWHERE * weights)
    return Verdict(
        certificate=with_the_better_bound(own, theirs),
        excess=excess,
        certified=solved & (excess <= gap),
        stands_still=still,
        contradicted=solved & still & stays & (weights > ELSEWHERE),
    )


def is_solved(solution: Solution) -> Bool[Array, ""]:
    """Whether a program has a solution that counts, if only an inaccurate one."""
    return jnp.asarray(solution.result == ProgramResult.optimal) | (solution.result == ProgramResult.inaccurate)


def with_the_better_bound(own: Certificate, theirs: Certificate) -> Certificate:
    """The flow's primal value against the larger of two lower bounds; `own` where its direction has no value."""
    better = jnp.isfinite(own.primal_value) & jnp.isfinite(theirs.dual_value) & (theirs.dual_value > own.dual_value)
    dual, source, farkas = tree_where(better, *((c.dual_value, c.source, c.farkas) for c in (theirs, own)))
    gap = jnp.where(better, above(own.primal_value, dual), own.duality_gap)
    return replace(own, dual_value=dual, duality_gap=gap, source=source, farkas=farkas)


def above(value: Float[Array, ""], bound: Float[Array, ""]) -> Float[Array, ""]:
    """The excess of a value over a bound, relative to it; +inf where there is none."""
    usable = jnp.isfinite(value) & jnp.isfinite(bound) & (bound > 0)
    return jnp.where(usable, value / jnp.where(usable, bound, 1.0) - 1.0, jnp.inf)


def _stand_still(directions: Inexact[Array, "2 ..."]) -> Bool[Array, ""]:
    flat = directions.reshape(2, -1)
    # Largest entries first: squares of weights at arc lengths of 1e160 overflow.
    largest = jnp.max(jnp.abs(flat), axis=1, keepdims=True)
    usable = jnp.all(jnp.isfinite(flat)) & jnp.all(largest > 0)
    unit = jnp.where(usable, flat / jnp.where(usable, largest, 1.0), 0.0)
    size = jnp.linalg.norm(unit, axis=1, keepdims=True)
    unit = unit / positive_or_one(size)
    return usable & (jnp.linalg.norm(unit[0] - unit[1]) <= ELSEWHERE)
