"""One outcome for what is known at the end of a path: an ordered table, the same for every model."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, UInt8

from jaxflow._core import Code, Outcome
from jaxflow.limits.limit import LimitKind

Fact = Bool[Array, ""] | bool


def decided(
    *,
    broken: Fact = False,
    interpolates: Fact = False,
    rests: Fact = False,
    spent: Fact = False,
    contradicted: Fact = False,
    infeasible: Fact = False,
    certified: Fact = False,
    optimal: UInt8[Array, ""] | int = Outcome.globally_optimal,
    ambiguous: Fact = False,
) -> tuple[Code, Code]:
    """Kind and outcome of a limit: those of the first fact that holds, in the order of the table; `undecided` where
    none does.

    **Arguments:** `broken`: the path or the program failed; `interpolates`: the path has come to a point that fits the
    data; `rests`: a minimum of the loss is at the end; `spent`: the budget ended before the path; `contradicted`: the
    predicted program does not describe the limit; `infeasible`: it has no solution, and the direction stands still;
    `certified`: the direction is, and `optimal` is the outcome that this means; `ambiguous`: whatever else holds, no
    one outcome applies, as where optimal tokens are tied. A family of models leaves out what it cannot meet.
    """
    point, direction, none = LimitKind.point, LimitKind.direction, LimitKind.none
    table = (
        (broken, none, Outcome.failed),
        (jnp.asarray(interpolates) & contradicted, point, Outcome.prediction_contradicted),
        (interpolates, point, Outcome.limit_point),
        (rests, point, Outcome.finite_stationary_point),
        (spent, none, Outcome.undecided),
        (contradicted, direction, Outcome.prediction_contradicted),
        (infeasible, none, Outcome.infeasible_program),
        (certified, direction, optimal),
    )
    facts = [jnp.asarray(fact) for fact, _, _ in table]
    kind = jnp.select(facts, [jnp.asarray(int(k), jnp.uint8) for _, k, _ in table], int(none))
    outcome = jnp.select(facts, [jnp.asarray(o, jnp.uint8) for *_, o in table], int(Outcome.undecided))
    outcome = jnp.where(jnp.asarray(ambiguous) & ~facts[0], Outcome.ambiguous.value, outcome)
    return Code(kind, LimitKind), Code(outcome, Outcome)
