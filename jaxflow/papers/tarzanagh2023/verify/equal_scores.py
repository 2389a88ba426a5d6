"""Theorem 4: descent from any start finds the optimal tokens if all others have equal scores (Assumption B.2).

Theorem 5: nearly equal scores of the non-optimal tokens; for T = 2 its hypothesis is empty.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.models import token_scores
from jaxflow.papers.experiment import Draw, Part, Table, checksum_key, keys_of, mapped, register, stacked, swept
from jaxflow.papers.independent import best_rows, flow, least_norm, misaligned, tokens_of
from jaxflow.papers.statement import Again, Mask, Statement
from jaxflow.papers.tarzanagh2023.programs import optimal_program, solved
from jaxflow.papers.tarzanagh2023.verify import follow as flows
from jaxflow.papers.tarzanagh2023.verify import instances as draws

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
    unique = (explicit.score_gap > 0) & (explicit.optimal_tokens == 1)
    return np.atleast_1d(unique & (explicit.score_spread <= EQUAL) & solved(explicit.program_result))


@mapped(static=4)
def _random(n: int, T: int, d: int, anywhere: bool, key: Array) -> Any:
    key_data, key_start = jax.random.split(key)
    tokens, head = draws.equal_scores(key_data, n, T, d)
    start = 3.0 * jax.random.normal(key_start, (d, d)) if anywhere else None
    return draws.padded(draws.instance(tokens, head, start))


def explicit_instance() -> Table:
    """From zero, towards the optimal tokens, as a batch of one."""
    return stacked([draws.padded(draws.instance(*draws.explicit_case()))])


def _explicit(scale: str, key: Any) -> Table:
    """The explicit case: its hypotheses (least score gap, spread of the other scores, optimal tokens of a sequence,
    program), and descent with η = 1/L_W from zero: `attention` (sequences, tokens) and 1 − corr with W^mm."""
    data, head = draws.explicit_case()
    spread, gap = draws.spread_and_gap(data, head)
    best, aim = optimal_program(data, head)
    end = eqx.filter_jit(draws.plain_descent)(data, head, jnp.zeros((2, 2)), STEPS[scale]).final.model
    return Table(
        score_gap=gap,
        score_spread=spread,
        optimal_tokens=jnp.max(jnp.sum(best, axis=1)),
        program_result=aim.result.value,
        steps=np.asarray(STEPS[scale]),
        rate=1.0 / draws.smoothness(data, head),
        attention=end.attention(data),
        misaligned=flows.misalignment(end.combined_weights(), aim.primal),
    )


# The explicit counterexample by descent, and its `flow` `(1,)`; `cells` `(6, b)`: random data that satisfy Assumption
# B.2.
EQUAL_SCORES = swept(
    "tarzanagh2023",
    "equal-scores",
    {
        "cells": Part(
            lambda keys, number: flows.follow(_random(*CELLS[number], keys)),
            {"n, T, d = {}, {}, {}, random start: {}".format(*cell): number for number, cell in enumerate(CELLS)},
            TRIALS,
            block=flows.WIDTH,
            draw_from=lambda seed, number: jax.random.fold_in(checksum_key("equal-scores")(seed), number),
            way="as a block",
        ),
    },
    explicit=_explicit,
    flow=lambda scale, key: flows.follow(explicit_instance()),
)


def _on_explicit(how: str, **more: Any) -> Statement[Table]:
    return Statement(
        source="Theorem 4",
        says="explicit case n = T = d = 2, z₁ = z₂ = (1, 0), tokens {0, (1, 0)} and {0, (−1.5, 1.3)}, "
        f"v = (1, 1.162), W(0) = 0: {how}",
        inside=lambda n: satisfied(n.explicit),
        bound=(flows.ALIGNED, "1 − corr with W^mm"),
        **more,
    )


def _flow_residual(numbers: Table) -> np.ndarray:
    ends = numbers.flow
    loses = (ends.target_attention < flows.UNSELECTED) & flows.certified(ends)
    # One that lost the token without a certificate, or whose limit is not certified as W^mm, is open.
    return flows.distance(ends, loses, flows.certified(ends) & (ends.misaligned <= flows.ALIGNED))


def _explicit_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    case, tokens = numbers.explicit, tokens_of(*draws.explicit_case())
    ((W,),) = flow(tokens, np.zeros((1, 2, 2)), float(np.log1p(case.steps * case.rate)))
    aim = least_norm(best_rows(tokens))
    return np.nan if aim is None else misaligned(W, aim)


EXPLICIT_FLOW = _on_explicit(
    "the flow",
    residual=_flow_residual,
    again=Again(flows.FLOWS, lambda n, draw, at: flows.limit_again(explicit_instance()), flows.PROGRAMS),
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

    def residual(ends: Table) -> np.ndarray:
        right = flows.has_program(ends) & ends.selected & (ends.misaligned <= flows.ALIGNED)
        # An optimal token without attention may get it back late: only a certified limit is wrong. Tokens of equal
        # scores exert no force on each other: where one of them is selected, the limit is in general not that of the
        # program with a margin between them, and the one without the sequence is certified.
        lost = flows.has_program(ends) & (ends.target_attention < flows.UNSELECTED)
        return flows.distance(ends, lost & (flows.certified(ends) | (ends.lost_gap <= flows.CERTIFIED)), right)

    def again(ends: Table, draw: Draw, at: tuple[int, ...]) -> float:
        key, _ = draw.instance("cells", at[0], number)
        return flows.limit_again(_random(*CELLS[number], key[None]))

    start = "entries of W(0) normal of size 3" if anywhere else "W(0) = 0"
    return Statement(
        source="Theorem 4",
        says=f"random data with equal scores, n = {n}, T = {T}, d = {d}, {start}: the flow",
        of=lambda n: n.cells.at(number),
        inside=flows.has_program,
        residual=residual,
        bound=(flows.ALIGNED, "1 − corr with W^mm"),
        again=Again(flows.FLOWS, again, flows.PROGRAMS),
    )


register(
    EQUAL_SCORES,
    title="Theorem 4",
    statements=[EXPLICIT_FLOW, EXPLICIT_DESCENT, *(random_data(number) for number in range(len(CELLS)))],
)

# Flows go in batches of 32: the four spreads of these fill one for each size, and seven.
NEAR_TRIALS = {"quick": 7, "paper": 49, "large": 4095}
# Spreads of the non-optimal scores, from none to that of ordinary data.
SPREADS = (0.0, 1e-6, 1e-3, 1e-1)
# (n, T, d): with one sequence Theorem 4 holds, with five it does not.
NEAR_CELLS = {"single": (1, 5, 4), "several": (5, 5, 4)}
PAIRS = (5, 2, 4)


def _near_cell(name: str, scale: str, key: Any) -> Table:
    keys = keys_of(key, list(NEAR_CELLS).index(name), NEAR_TRIALS[scale])
    return flows.follow_all([_near(*NEAR_CELLS[name], keys, spread) for spread in SPREADS])


def _two_tokens(scale: str, key: Any) -> Table:
    drawn = _pairs(*PAIRS, keys_of(key, 100, NEAR_TRIALS[scale]))
    return flows.follow(jax.tree.map(lambda a, b: jnp.concatenate([a, b]), explicit_instance(), drawn))


@mapped(static=3, axes=(0, None))
def _near(n: int, T: int, d: int, key: Array, spread: Any) -> Any:
    key_data, key_spread = jax.random.split(key)
    data, head = draws.equal_scores(key_data, n, T, d)
    scores = token_scores(data, head)
    best = optimal_tokens(scores, data.visible)
    # The head is the first coordinate. Moves go down, so that optimal tokens stay optimal.
    move = -spread * jax.random.uniform(key_spread, scores.shape) * data.labels[:, None]
    tokens = data.tokens.at[:, :, 0].add(jnp.where(best, 0.0, move))
    return draws.padded(draws.instance(TokenData(tokens, data.queries, data.labels), head))


@mapped(static=3)
def _pairs(n: int, T: int, d: int, key: Array) -> Any:
    return draws.padded(draws.instance(*random_tokens(key, n, T, d)))


# `single`, `several` `(4, b)`: flows of each of `NEAR_CELLS` at `SPREADS`, the same draws at every spread; `pairs`
# `(1 + b,)`: of sequences of two tokens, where every δ will do, the explicit case of Theorem 4 first.
NEARLY_EQUAL = swept(
    "tarzanagh2023",
    "nearly-equal-scores",
    **{name: partial(_near_cell, name) for name in NEAR_CELLS},
    pairs=_two_tokens,
)


def _pair_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    if at[0] == 0:
        return flows.limit_again(explicit_instance())
    own = keys_of(draw.key("pairs"), 100, NEAR_TRIALS[draw.scale])[at[0] - 1]
    return flows.limit_again(_pairs(*PAIRS, own[None]))


TWO_TOKENS = flows.converges(
    "Theorem 5",
    "T = 2, W(0) = 0: one non-optimal token in each sequence, so that every δ is small enough; the explicit case of "
    f"Theorem 4, and random data with n = {PAIRS[0]}, d = {PAIRS[2]}: the flow",
    lambda n: n.pairs,
    again=Again(flows.FLOWS, _pair_again, flows.PROGRAMS),
)


def near(name: str) -> Statement[Table]:
    """Of one size. The statement promises some δ > 0: the smallest two are all that is asked of an instance."""
    n, T, d = NEAR_CELLS[name]

    def ends(numbers: Table) -> tuple[Mask, Mask, Mask, np.ndarray]:
        """Inside, and for every δ: at W^mm, certified elsewhere, 1 − corr with W^mm."""
        found = getattr(numbers, name)
        # With equal scores the limit may be that of the program without the sequences that lost their optimal token.
        equal = np.asarray(SPREADS)[:, None] == 0
        wrong = ~found.selected & (flows.certified(found) | (equal & (found.lost_gap <= flows.CERTIFIED)))
        return np.all(flows.has_program(found), axis=0), flows.reached(found), wrong, found.misaligned

    def residual(numbers: Table) -> np.ndarray:
        _, right, wrong, apart = ends(numbers)
        lost = np.where(np.all(wrong[:3], axis=0), apart[1], np.nan)
        return np.where(right[1], apart[1], np.where(right[2], apart[2], lost))

    def again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
        own = keys_of(draw.key(name), list(NEAR_CELLS).index(name), NEAR_TRIALS[draw.scale])[at[0]]
        # The residual of one that ends elsewhere at every δ is that at the least.
        return flows.limit_again(_near(n, T, d, own[None], SPREADS[1]))

    return Statement(
        source="Theorem 5",
        says=f"|γ_it − γ_iτ| ≤ δ for non-optimal tokens, the same draws for every δ, W(0) = 0, n = {n}, T = {T}, "
        f"d = {d}: the flow",
        inside=lambda n: ends(n)[0],
        residual=residual,
        bound=(flows.ALIGNED, f"1 − corr with W^mm at δ = {SPREADS[1]:g} or {SPREADS[2]:g}"),
        again=Again(flows.FLOWS, again, flows.PROGRAMS),
    )


register(NEARLY_EQUAL, title="Theorem 5", statements=[TWO_TOKENS, *map(near, NEAR_CELLS)])
