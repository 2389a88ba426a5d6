"""Theorem 4 on an ensemble: `find_limit` under one `vmap`, every instance with its outcome."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome
from jaxflow.data import LinearData
from jaxflow.flow import Dual
from jaxflow.limits import LinearStaged, find_limit
from jaxflow.models import DiagonalLinearNetwork
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.yun2021.verify.shared import POINT, distance, regression, residual_row
from jaxflow.theory import interpolation_limit

TRIALS = {"quick": 50, "paper": 1000, "large": 100_000}
N, D, ALPHA = 5, 20, 0.1
# Instances under one vmap; a block's width changes no answer.
WIDTH = 250


@register_check("yun2021", "ensemble", statements="Theorem 4 on a thousand instances")
class Ensemble(AbstractCheck):
    """Random regressions, n = 5, d = 20: diagonal networks of two layers in their dual form."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        trials = TRIALS[scale]
        width = min(WIDTH, trials)
        say(f"{trials} regressions, n = {N}, d = {D}, {width} under one vmap")
        solve = jax.jit(jax.vmap(_limit))
        keys = jax.random.split(key, trials)
        parts = [solve(keys[begin : begin + width]) for begin in range(0, trials, width)]
        return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}

    def rows(self, data: Data) -> list[Row]:
        names = Counter(Outcome(int(code)).name for code in data["outcome"])
        counted = ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
        return [
            residual_row(
                "Theorem 4",
                f"diagonal networks, L = 2, n = {N}, d = {D}, α = {ALPHA:g}: find_limit under vmap, every instance "
                "with its outcome",
                np.where(data["outcome"] == Outcome.limit_point.value, data["error"], np.nan),
                np.ones(data["error"].shape, bool),
                POINT,
                "relative distance of β",
                more=f"; outcomes: {counted}; {int(data['steps'].min())} to {int(data['steps'].max())} steps, median "
                f"{int(np.median(data['steps']))}",
            )
        ]


def _limit(key: Any) -> dict[str, Any]:
    x_key, y_key, start_key = jax.random.split(key, 3)
    X, y = jax.random.normal(x_key, (N, D)), jax.random.normal(y_key, (N,))
    start = DiagonalLinearNetwork.init(start_key, LinearData(X, y), alpha=ALPHA, scheme="equal")
    limit = find_limit(regression(X, y), start, method=LinearStaged(coordinates=Dual(), rtol=1e-10), throw=False)
    # The oracle is solved from the data alone.
    closed = interpolation_limit(X, y, start.layers[0], 2)
    error = distance(limit.trajectory.final.model.linear_coefficients(), closed.singular)
    return {
        "outcome": limit.outcome.value,
        "error": jnp.where(closed.converged, error, jnp.nan),
        "steps": limit.trajectory.stats["num_steps"],
    }
