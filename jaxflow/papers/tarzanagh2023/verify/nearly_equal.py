"""Theorem 5: nearly equal scores of the non-optimal tokens; for T = 2 its hypothesis is empty."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.margin import ProgramResult
from jaxflow.models import token_scores
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.follow import CERTIFIED, SHAPE, follow_each
from jaxflow.papers.tarzanagh2023.verify.instances import equal_scores, explicit_case, instance, padded, stack
from jaxflow.report import Evidence
from jaxflow.study import wilson

# Flows go in batches of 32: these fill two, and fourteen.
TRIALS = {"quick": 7, "paper": 49, "large": 4095}
# Spreads of the non-optimal scores, from none to that of ordinary data.
SPREADS = (0.0, 1e-6, 1e-3, 1e-1)
# (n, T, d): with one sequence Theorem 4 holds, with five it does not.
CELLS = ((1, 5, 4), (5, 5, 4))
PAIRS = (5, 2, 4)
ALIGNED = 1e-8
MEANS = "the dual solutions of the programs that the flows do solve"


@register_check("tarzanagh2023", "nearly-equal-scores", statements="Theorem 5")
class NearlyEqual(AbstractCheck):
    """The same draws at every spread δ; and sequences of two tokens, where every δ will do."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        trials = TRIALS[scale]
        say(f"Theorem 5: {trials} instances for each n, T, d of {CELLS} at δ = {SPREADS}, and of {PAIRS}")
        parts = {}
        for number, (n, T, d) in enumerate(CELLS):
            keys = jax.random.split(jax.random.fold_in(key, number), trials)
            parts |= {f"cell{number}_{i}": _near(n, T, d, keys, spread) for i, spread in enumerate(SPREADS)}
        keys = jax.random.split(jax.random.fold_in(key, 100), trials)
        explicit = stack([padded(instance(*explicit_case()), SHAPE)])
        parts["pairs"] = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), explicit, _pairs(*PAIRS, keys))
        return follow_each(parts)

    def rows(self, data: Data) -> list[Row]:
        return [_pairs_row(data), *(_spread_row(data, number) for number in range(len(CELLS)))]


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


def _ends(data: Data, name: str, equal: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of flows: in the hypotheses, at W^mm, certified elsewhere, and 1 − corr with W^mm."""
    part = {key.removeprefix(f"{name}_"): value for key, value in data.items() if key.startswith(f"{name}_")}
    inside = part["feasible"] == ProgramResult.optimal.value
    certified = part["flow_gap"] <= CERTIFIED
    right = inside & part["selected"] & (part["misaligned"] <= ALIGNED) & certified
    # With equal scores the limit may be that of the program without the sequences that lost their optimal token.
    elsewhere = certified | ((part["lost_gap"] <= CERTIFIED) if equal else False)
    return inside, right, inside & ~part["selected"] & elsewhere, part["misaligned"]


def _pairs_row(data: Data) -> Row:
    inside, right, wrong, apart = _ends(data, "pairs")
    n, T, d = PAIRS
    total, count = int(inside[1:].sum()), int(wrong[1:].sum())
    low, high = wilson(count, total)
    decided = right | wrong
    return Row(
        "Theorem 5",
        f"T = 2, W(0) = 0: one non-optimal token in each sequence, so that every δ is small enough; the explicit case "
        f"of Theorem 4, and random data with n = {n}, d = {d}: the flow",
        f"the explicit case {'is certified for another token' if wrong[0] else 'does not leave the optimal tokens'}; "
        f"{count} of {total} random ones are ({100 * count / max(total, 1):.1f}%, Wilson 95% [{100 * float(low):.1f}, "
        f"{100 * float(high):.1f}]), {int(right[1:].sum())} reach W^mm, {total - int(decided[1:].sum())} are undecided",
        int(inside.sum()),
        int((~inside).sum()),
        float(apart[decided].max(initial=0.0)) if decided.any() else float("inf"),
        "1 − corr with W^mm",
        Evidence(int(inside.sum()), int(wrong.sum()), int((inside & ~decided).sum()), checked_by=MEANS),
        {"explicit": int(wrong[0]), "wrong": count, "instances": total},
    )


def _spread_row(data: Data, number: int) -> Row:
    n, T, d = CELLS[number]
    cells = [_ends(data, f"cell{number}_{index}", spread == 0) for index, spread in enumerate(SPREADS)]
    inside = np.logical_and.reduce([cell[0] for cell in cells])
    total = int(inside.sum())
    right, wrong = (np.stack([cell[k] for cell in cells]) for k in (1, 2))
    counts = "; ".join(
        f"δ = {spread:g}: {int((right[i] & inside).sum())} reach W^mm, {int((wrong[i] & inside).sum())} another limit, "
        f"{int((inside & ~right[i] & ~wrong[i]).sum())} are undecided"
        for i, spread in enumerate(SPREADS)
    )
    # The statement promises some δ > 0: the smallest two are all that is asked of an instance.
    reached = int((inside & right[1:3].any(axis=0)).sum())
    lost = int((inside & wrong[:3].all(axis=0)).sum())
    decided = inside & right[1]
    return Row(
        "Theorem 5",
        f"|γ_it − γ_iτ| ≤ δ for non-optimal tokens, the same draws for every δ, W(0) = 0, n = {n}, T = {T}, d = {d}: "
        "the flow",
        f"{reached} of {total} reach W^mm at δ = {SPREADS[1]:g} or {SPREADS[2]:g}, {lost} end elsewhere at every δ "
        f"from 0 to {SPREADS[2]:g}; {counts}",
        total,
        int((~inside).sum()),
        float(cells[1][3][decided].max(initial=0.0)) if decided.any() else float("inf"),
        f"1 − corr with W^mm at δ = {SPREADS[1]:g} of those that reach it",
        Evidence(total, lost, total - reached - lost, checked_by=MEANS),
        {"reached": reached, "lost": lost, "instances": total},
    )
