"""Theorem 4: descent from any start finds the optimal tokens if all others have equal scores (Assumption B.2)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import optimal_tokens
from jaxflow.gradient_descent import descend
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import CombinedAttention, token_scores
from jaxflow.papers.dataset import Dataset, Draw, Part, Sweep, checksum_key
from jaxflow.papers.independent import descent_direction, flow_to, least_norm, margin_rows, misaligned, tokens_of
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Again, Mask, Statement
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.verify.follow import (
    ALIGNED,
    CERTIFIED,
    FLOWS,
    PROGRAMS,
    SHAPE,
    UNSELECTED,
    WIDTH,
    certified,
    distance,
    follow,
    has_program,
    limit_again,
    misalignment,
)
from jaxflow.papers.tarzanagh2023.verify.instances import (
    Instance,
    equal_scores,
    explicit_case,
    instance,
    padded,
    smoothness,
    stack,
)
from jaxflow.risk import EmpiricalRisk

# Descent with η = 1/L_W for the flow: directions differ by less than this.
STEPPED = 1e-2
# Scores moved onto each other agree to rounding.
EQUAL = 1e-12

TRIALS = {"quick": 16, "paper": 256, "large": 4096}
STEPS = {"quick": 30_000, "paper": 1_000_000, "large": 10_000_000}
# (n, T, d, random start): the statement is for any n and any start.
CELLS = ((5, 5, 4, False), (5, 5, 6, False), (5, 2, 4, False), (5, 2, 6, False), (1, 5, 4, False), (1, 5, 4, True))


def satisfied(explicit: Table) -> Mask:
    """Unique optimal tokens, equal other scores, (Att-SVM) feasible `(1,)`. The loss is logistic."""
    feasible = explicit.program_result == ProgramResult.optimal.value
    unique = (explicit.score_gap > 0) & (explicit.optimal_tokens == 1)
    return np.atleast_1d(unique & (explicit.score_spread <= EQUAL) & feasible)


def _cells(keys: Array, number: int) -> Table:
    return follow(_random(*CELLS[number], keys))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _random(n: int, T: int, d: int, anywhere: bool, keys: Array) -> Any:
    def one(key: Array) -> Any:
        key_data, key_start = jax.random.split(key)
        tokens, head = equal_scores(key_data, n, T, d)
        start = 3.0 * jax.random.normal(key_start, (d, d)) if anywhere else None
        return padded(instance(tokens, head, start), SHAPE)

    return jax.vmap(one)(keys)


def explicit_instance() -> Instance:
    """From zero, towards the optimal tokens."""
    return instance(*explicit_case())


def _explicit_flow(scale: str, key: Any, say: Callable[[str], None]) -> Table:
    return follow(stack([padded(explicit_instance(), SHAPE)]))


def _explicit(scale: str, key: Any, say: Callable[[str], None]) -> Table:
    """The explicit case: its hypotheses (least score gap, spread of the other scores, optimal tokens of a sequence,
    program), and descent with η = 1/L_W from zero: `attention` (sequences, tokens), norm and 1 − corr with W^mm."""
    say(f"Theorem 4: {STEPS[scale]} steps of descent on the explicit case")
    data, head = explicit_case()
    scores = token_scores(data, head)
    best = optimal_tokens(scores, data.visible)
    others = jnp.where(best, jnp.nan, scores)
    spread = jnp.nanmax(others, axis=1) - jnp.nanmin(others, axis=1)
    gap = jnp.sum(jnp.where(best, scores, -scores), axis=1)
    aim = solve(attention_svm(data, best, "frobenius"))
    rate = 1.0 / smoothness(data, head)
    path = eqx.filter_jit(descend)(
        EmpiricalRisk(data, Logistic()),
        CombinedAttention(jnp.zeros((2, 2)), head),
        steps=STEPS[scale],
        learning_rate=rate,
        normalised=False,
        throw=False,
    )
    W = path.final.model.combined_weights()
    return Table(
        score_gap=jnp.min(gap),
        score_spread=jnp.max(spread),
        optimal_tokens=jnp.max(jnp.sum(best, axis=1)),
        program_result=aim.result.value,
        program_gap=aim.certificate.duality_gap,
        steps=np.asarray(STEPS[scale]),
        rate=rate,
        attention=path.final.model.attention(data),
        misaligned=misalignment(W, aim.primal),
        norm=jnp.linalg.norm(W),
    )


KEY = checksum_key("equal-scores")
# The explicit counterexample by descent, and its `flow` `(1,)`; `cells` `(6, b)`: random data that satisfy Assumption
# B.2.
EQUAL_SCORES = Dataset(
    "tarzanagh2023",
    "equal-scores",
    {
        "explicit": Sweep(_explicit, KEY),
        "flow": Sweep(_explicit_flow, KEY),
        "cells": Part(
            _cells,
            {"n, T, d = {}, {}, {}, random start: {}".format(*cell): number for number, cell in enumerate(CELLS)},
            TRIALS,
            block=WIDTH,
            draw_from=lambda seed, number: jax.random.fold_in(KEY(seed), number),
            way="as a block",
        ),
    },
    where=f"{__name__}:EQUAL_SCORES",
)


def _on_explicit(how: str, **more: Any) -> Statement[Table]:
    return Statement(
        source="Theorem 4",
        says="explicit case n = T = d = 2, z₁ = z₂ = (1, 0), tokens {0, (1, 0)} and {0, (−1.5, 1.3)}, "
        f"v = (1, 1.162), W(0) = 0: {how}",
        inside=lambda n: satisfied(n.explicit),
        bound=ALIGNED,
        unit="1 − corr with W^mm",
        **more,
    )


def _flow_residual(numbers: Table) -> np.ndarray:
    ends = numbers.flow
    loses = (ends.target_attention < UNSELECTED) & certified(ends)
    # One that lost the token without a certificate, or whose limit is not certified as W^mm, is open.
    return distance(ends, loses, certified(ends) & (ends.misaligned <= ALIGNED))


def _explicit_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    case, given = numbers.explicit, explicit_instance()
    tokens = tokens_of(given.data, given.head)
    (W,) = flow_to(partial(descent_direction, tokens), np.zeros((2, 2)), float(np.log(case.steps * case.rate)))
    aim = least_norm(margin_rows(tokens, np.argmax(np.asarray(given.target), axis=1)))
    return np.nan if aim is None else misaligned(W, aim)


EXPLICIT_FLOW = _on_explicit(
    "the flow",
    residual=_flow_residual,
    again=Again(FLOWS, lambda n, draw, at: limit_again(explicit_instance()), PROGRAMS),
)
EXPLICIT_DESCENT = _on_explicit(
    "descent with η = 1/L_W",
    # An optimal token of the second sequence with attention has not been lost yet.
    residual=lambda n: np.where(n.explicit.attention[1:, 1] < 1e-3, n.explicit.misaligned, np.nan),
    again=Again("LSODA of SciPy in place of descent, and NNLS", _explicit_again, STEPPED),
)


def random_data(number: int) -> Statement[Table]:
    """Of one cell."""
    n, T, d, anywhere = CELLS[number]

    def residual(numbers: Table) -> np.ndarray:
        ends = numbers.cells.at(number)
        right = has_program(ends) & ends.selected & (ends.misaligned <= ALIGNED)
        # An optimal token without attention may get it back late: only a certified limit is wrong. Tokens of equal
        # scores exert no force on each other: where one of them is selected, the limit is in general not that of the
        # program with a margin between them, and the one without the sequence is certified.
        lost = has_program(ends) & (ends.target_attention < UNSELECTED)
        return distance(ends, lost & (certified(ends) | (ends.lost_gap <= CERTIFIED)), right)

    def again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
        key, _ = draw.instance("cells", at[0], number)
        return limit_again(jax.tree.map(lambda x: x[0], _random(*CELLS[number], key[None])))

    start = "entries of W(0) normal of size 3" if anywhere else "W(0) = 0"
    return Statement(
        source="Theorem 4",
        says=f"random data with equal scores, n = {n}, T = {T}, d = {d}, {start}: the flow",
        inside=lambda n: has_program(n.cells.at(number)),
        residual=residual,
        bound=ALIGNED,
        unit="1 − corr with W^mm",
        again=Again(FLOWS, again, PROGRAMS),
    )


register(
    EQUAL_SCORES,
    title="Theorem 4",
    statements=[EXPLICIT_FLOW, EXPLICIT_DESCENT, *(random_data(number) for number in range(len(CELLS)))],
)
