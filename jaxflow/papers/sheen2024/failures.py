"""`reproduce sheen2024 failures`: what happens when Assumptions 2, 3 and 4 fail, one at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.sheen2024.aligned_paths import SHAPE, Setting, follow_aligned
from jaxflow.papers.sheen2024.diagonal_paths import Cell, follow_diagonal
from jaxflow.papers.sheen2024.failure_claims import claims_of_failures
from jaxflow.plots import draw_failures
from jaxflow.study import wilson

TRIALS = {"quick": 8, "paper": 120, "large": 1000}
BROKEN = {"quick": 8, "paper": 24, "large": 256}
# At exactly one rounding decides whether Assumption 3 holds.
MULTIPLES = (0.02, 0.1, 0.25, 0.5, 0.9, 1.1)
# From β = 0 a spread of ε costs a gap of about ln n/(1/T − ε), so that Assumption 3 is out of reach from 1/T = 0.25 on;
# three times the gap for equal scores is enough for the first three.
SPREADS = (0.05, 0.1, 0.15, 0.4)
SPREAD_MULTIPLE = 3.0
AMOUNTS = (0.05, 0.1, 0.3)
# For the tokens that are selected. At 1e-5 steps beyond log t = 1e3 are longer than Newton's method converges on: none
# of eight flows had arrived after 1,024 steps, which at 1e-8 is about what one takes.
RTOL = 1e-8


@register_figure(
    "sheen2024",
    "failures",
    title="Assumptions that fail: small score gaps, unequal scores, Assumption 4 (i) to (iii) broken",
    run_times={
        "quick": "8 instances for each of 11 kinds of data, 8 for each of 9 breaks, a quarter of an hour",
        "paper": "120 instances for each of 11 kinds of data, 24 for each of 9 breaks, hours (estimated)",
        "large": "1,000 instances for each of 11 kinds of data, 256 for each of 9 breaks, hours",
    },
)
class Failures(AbstractFigure):
    r"""Diagonal flows at n = L = 4, d = 10, $\omega_0=0.1$ (the same tokens for every gap and spread, and tokens that
    know nothing of either assumption), and flows of (K, Q) from an aligned start at n = 2, L = 3, d = 4."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        key = jax.random.fold_in(jax.random.key(seed), 6)
        keys = jax.random.split(key, TRIALS[scale])
        data: Data = {"multiples": np.asarray(MULTIPLES), "spreads": np.asarray(SPREADS)}
        cells = {
            "gap": [Cell(4, 4, 10, multiple, 0.1) for multiple in MULTIPLES],
            "spread": [Cell(4, 4, 10, SPREAD_MULTIPLE, 0.1, spread) for spread in SPREADS],
            "random": [Cell(4, 4, 10, 1.1, 0.1, random=True)],
        }
        for name, row in cells.items():
            say(f"{name}: {len(keys)} instances for each of {len(row)}")
            found = [follow_diagonal(cell, keys, both=False, rtol=RTOL) for cell in row]
            for part in ("ok", "selects", "diagonal", "small", "weights_gap", "gap", "result"):
                data[f"{name}_{part}"] = np.stack([each[part] for each in found])
            data |= _shares(name, data)
        some = jax.random.split(jax.random.fold_in(key, 1), BROKEN[scale])
        data["amounts"] = np.asarray(AMOUNTS)
        for part in range(3):
            say(f"Assumption 4 ({'i' * (part + 1)}): {len(some)} instances for each of {len(AMOUNTS)} amounts")
            found = []
            for amount in AMOUNTS:
                breaks = jnp.zeros((len(some), 3)).at[:, part].set(amount)
                found.append(follow_aligned(Setting(*SHAPE), some, breaks))
            for name in ("ok", "velocity_excess", "alignment", "attention"):
                data[f"broken{part}_{name}"] = np.stack([each[name] for each in found])
        data["broken"] = np.stack([_quantiles(data, part) for part in range(3)])
        return data

    def draw(self, data: Data) -> Any:
        return draw_failures(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of_failures(data)


def _shares(name: str, data: Data) -> Data:
    """Of the instances with a feasible ℓ1-SVM: wrong selections with intervals, undecided ones, Assumption 3."""
    inside = data[f"{name}_diagonal"] > 0
    total = inside.sum(axis=1)
    wrong = (inside & data[f"{name}_ok"] & (data[f"{name}_selects"] == -1)).sum(axis=1)
    right = (inside & data[f"{name}_ok"] & (data[f"{name}_selects"] == 1)).sum(axis=1)
    low, high = wilson(wrong, total)
    whole = np.maximum(total, 1)
    assumed = (inside & (data[f"{name}_small"] >= 0)).sum(axis=1) / whole
    shares = {"share": wrong / whole, "low": low, "high": high, "open": (total - wrong - right) / whole}
    shares |= {"assumed": assumed, "total": total, "wrong": wrong, "right": right}
    return {f"{name}_{part}": value for part, value in shares.items()}


def _quantiles(data: Data, part: int) -> np.ndarray:
    """10%, 50% and 90% of the excess at the end for each amount, `(amounts, 3)`; NaN where no flow was followed."""
    rows = []
    for ok, excess in zip(data[f"broken{part}_ok"], data[f"broken{part}_velocity_excess"], strict=True):
        values = excess[ok, -1]
        values = values[np.isfinite(values)]
        rows.append(np.quantile(values, [0.1, 0.5, 0.9]) if len(values) else np.full(3, np.nan))
    return np.asarray(rows)
