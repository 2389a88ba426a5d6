"""The flow's direction against the predicted program: certified, contradicted, or still open."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Inexact

from jaxflow._core import positive_or_one
from jaxflow.limits.stages import Positive, kept, left_by_pairs
from jaxflow.margin import Certificate, ProgramResult, Solution
from jaxflow.trajectory import Trajectory

# A flow that stands elsewhere: its direction is this far above the optimum, and stays there. At log ρ a component with
# slack c = 2(1 - κ) has decayed to ρ^-c of the direction; velocity and weights then differ by c of it, in the excess
# as in the direction, and it adds at most c/2 to the excess. A component below the drift tolerance (c <= `STILL`)
# is therefore below `ELSEWHERE`: only a limit that is not the program's is above it and stays.
ELSEWHERE = 1e-3
STILL = 1e-3
# No direction is judged before this arc length: what a start of order one adds to the weights is then of order `STILL`.
LOG_LENGTH = float(np.log(1e3))


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
    solved = (solution.result == ProgramResult.optimal) | (solution.result == ProgramResult.inaccurate)
    solved = solved & (jnp.abs(theirs.duality_gap) <= gap)
    bound = jnp.where(jnp.isfinite(theirs.dual_value) & (theirs.dual_value > 0), theirs.dual_value, 0.0)
    excess = _above(own.primal_value, bound)
    velocity, weights = _above(values[0], bound), _above(values[1], bound)
    still = _stand_still(directions) & (trajectory.final.log_arc_length >= LOG_LENGTH)
    still = still & ~left_by_pairs(trajectory.final, kept(start))
    nowhere = jnp.isinf(weights)
    apart = jnp.abs(velocity - jnp.where(nowhere, 0.0, weights))
    stays = jnp.where(nowhere, jnp.isinf(velocity), apart <= STILL * weights)
    return Verdict(
        certificate=with_the_better_bound(own, theirs),
        excess=excess,
        certified=solved & (excess <= gap),
        stands_still=still,
        contradicted=solved & still & stays & (weights > ELSEWHERE),
    )


def with_the_better_bound(own: Certificate, theirs: Certificate) -> Certificate:
    """The flow's primal value against the larger of two lower bounds; `own` where its direction has no value."""
    better = jnp.isfinite(own.primal_value) & jnp.isfinite(theirs.dual_value) & (theirs.dual_value > own.dual_value)
    dual = jnp.where(better, theirs.dual_value, own.dual_value)
    return eqx.tree_at(
        lambda c: (c.dual_value, c.duality_gap, c.source.value, c.farkas),
        own,
        (
            dual,
            jnp.where(better, _above(own.primal_value, dual), own.duality_gap),
            jnp.where(better, theirs.source.value, own.source.value),
            jnp.where(better, theirs.farkas, own.farkas),
        ),
    )


def _above(value: Float[Array, ""], bound: Float[Array, ""]) -> Float[Array, ""]:
    usable = jnp.isfinite(value) & (bound > 0)
    return jnp.where(usable, value / jnp.where(usable, bound, 1.0) - 1.0, jnp.inf)


def _stand_still(directions: Inexact[Array, "2 ..."]) -> Bool[Array, ""]:
    flat = directions.reshape(2, -1)
    # Largest entries first: squares of weights at arc lengths of 1e160 overflow.
    largest = jnp.max(jnp.abs(flat), axis=1, keepdims=True)
    usable = jnp.all(jnp.isfinite(flat)) & jnp.all(largest > 0)
    unit = jnp.where(usable, flat / jnp.where(usable, largest, 1.0), 0.0)
    size = jnp.linalg.norm(unit, axis=1, keepdims=True)
    unit = unit / positive_or_one(size)
    return usable & (jnp.linalg.norm(unit[0] - unit[1]) <= STILL)
