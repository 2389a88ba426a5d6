"""Theorem 5: nearly equal scores of the non-optimal tokens; for T = 2 its hypothesis is empty."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.models import token_scores
from jaxflow.papers.dataset import Dataset, Draw, Sweep, checksum_key
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Again, Mask, Statement
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.verify.follow import (
    ALIGNED,
    CERTIFIED,
    FLOWS,
    PROGRAMS,
    SHAPE,
    certified,
    converges,
    follow,
    follow_all,
    has_program,
    limit_again,
    reached,
)
from jaxflow.papers.tarzanagh2023.verify.instances import equal_scores, explicit_case, instance, padded, stack

# Flows go in batches of 32: the four spreads of these fill one for each size, and seven.
TRIALS = {"quick": 7, "paper": 49, "large": 4095}
# Spreads of the non-optimal scores, from none to that of ordinary data.
SPREADS = (0.0, 1e-6, 1e-3, 1e-1)
# (n, T, d): with one sequence Theorem 4 holds, with five it does not.
CELLS = ((1, 5, 4), (5, 5, 4))
PAIRS = (5, 2, 4)


def _cell(number: int, scale: str, key: Any, say: Callable[[str], None]) -> Table:
    say(f"Theorem 5: {TRIALS[scale]} instances with n, T, d = {CELLS[number]} at δ = {SPREADS}")
    keys = _cell_keys(number, scale, key)
    return follow_all([_near(*CELLS[number], keys, spread) for spread in SPREADS])


def _cell_keys(number: int, scale: str, key: Any) -> Array:
    return jax.random.split(jax.random.fold_in(key, number), TRIALS[scale])


def _pair_keys(scale: str, key: Any) -> Array:
    return jax.random.split(jax.random.fold_in(key, 100), TRIALS[scale])


def _two_tokens(scale: str, key: Any, say: Callable[[str], None]) -> Table:
    say(f"Theorem 5: the explicit case, and {TRIALS[scale]} instances with n, T, d = {PAIRS}")
    drawn = _pairs(*PAIRS, _pair_keys(scale, key))
    explicit = stack([padded(instance(*explicit_case()), SHAPE)])
    return follow(jax.tree.map(lambda a, b: jnp.concatenate([a, b]), explicit, drawn))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _near(n: int, T: int, d: int, keys: Array, spread: Any) -> Any:
    def one(key: Array) -> Any:
        key_data, key_spread = jax.random.split(key)
        data, head = equal_scores(key_data, n, T, d)
        scores = token_scores(data, head)
        best = optimal_tokens(scores, data.visible)
        # The head is the first coordinate. Moves go down, so that optimal tokens stay optimal.
        move = -spread * jax.random.uniform(key_spread, scores.shape) * data.labels[:, None]
        tokens = data.tokens.at[:, :, 0].add(jnp.where(best, 0.0, move))
        return padded(instance(TokenData(tokens, data.queries, data.labels), head), SHAPE)

    return jax.vmap(one)(keys)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _pairs(n: int, T: int, d: int, keys: Array) -> Any:
    return jax.vmap(lambda key: padded(instance(*random_tokens(key, n, T, d)), SHAPE))(keys)


KEY = checksum_key("nearly-equal-scores")
# `single`, `several` `(4, b)`: flows of each of `CELLS` at `SPREADS`, the same draws at every spread; `pairs` `(1 +
# b,)`: of sequences of two tokens, where every δ will do, the explicit case of Theorem 4 first.
NEARLY_EQUAL = Dataset(
    "tarzanagh2023",
    "nearly-equal-scores",
    {
        "single": Sweep(partial(_cell, 0), KEY),
        "several": Sweep(partial(_cell, 1), KEY),
        "pairs": Sweep(_two_tokens, KEY),
    },
    where=f"{__name__}:NEARLY_EQUAL",
)


def _pair_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    if at[0] == 0:
        return limit_again(instance(*explicit_case()))
    own = _pair_keys(draw.scale, draw.key("pairs"))[at[0] - 1]
    return limit_again(jax.tree.map(lambda x: x[0], _pairs(*PAIRS, own[None])))


TWO_TOKENS = converges(
    "Theorem 5",
    "T = 2, W(0) = 0: one non-optimal token in each sequence, so that every δ is small enough; the explicit case of "
    f"Theorem 4, and random data with n = {PAIRS[0]}, d = {PAIRS[2]}: the flow",
    lambda n: n.pairs,
    again=Again(FLOWS, _pair_again, PROGRAMS),
)


def near(number: int) -> Statement[Table]:
    """Of one size. The statement promises some δ > 0: the smallest two are all that is asked of an instance."""
    n, T, d = CELLS[number]

    def ends(numbers: Table) -> tuple[Mask, Mask, Mask, np.ndarray]:
        """Inside, and for every δ: at W^mm, certified elsewhere, 1 − corr with W^mm."""
        found = (numbers.single, numbers.several)[number]
        # With equal scores the limit may be that of the program without the sequences that lost their optimal token.
        equal = np.asarray(SPREADS)[:, None] == 0
        wrong = ~found.selected & (certified(found) | (equal & (found.lost_gap <= CERTIFIED)))
        return np.all(has_program(found), axis=0), reached(found), wrong, found.misaligned

    def residual(numbers: Table) -> np.ndarray:
        _, right, wrong, apart = ends(numbers)
        lost = np.where(np.all(wrong[:3], axis=0), apart[1], np.nan)
        return np.where(right[1], apart[1], np.where(right[2], apart[2], lost))

    def again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
        own = _cell_keys(number, draw.scale, draw.key(("single", "several")[number]))[at[0]]
        # The residual of one that ends elsewhere at every δ is that at the least.
        return limit_again(jax.tree.map(lambda x: x[0], _near(n, T, d, own[None], SPREADS[1])))

    return Statement(
        source="Theorem 5",
        says=f"|γ_it − γ_iτ| ≤ δ for non-optimal tokens, the same draws for every δ, W(0) = 0, n = {n}, T = {T}, "
        f"d = {d}: the flow",
        inside=lambda n: ends(n)[0],
        residual=residual,
        bound=ALIGNED,
        unit=f"1 − corr with W^mm at δ = {SPREADS[1]:g} or {SPREADS[2]:g}",
        again=Again(FLOWS, again, PROGRAMS),
    )


register(
    NEARLY_EQUAL,
    title="Theorem 5",
    statements=[TWO_TOKENS, *(near(number) for number in range(len(CELLS)))],
)
