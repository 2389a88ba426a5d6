"""Theorem 4 on an ensemble: `find_limit` under one `vmap`, every instance with its outcome."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Outcome
from jaxflow.data import LinearData
from jaxflow.flow import Dual
from jaxflow.limits import LinearStaged, find_limit
from jaxflow.models import DiagonalLinearNetwork
from jaxflow.papers.dataset import Dataset, Part
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Statement
from jaxflow.papers.table import Table
from jaxflow.papers.yun2021.flows import POINT, distance, regression
from jaxflow.study import subkey
from jaxflow.theory import interpolation_limit

TRIALS = {"quick": 50, "paper": 1000, "large": 100_000}
N, D, ALPHA = 5, 20, 0.1


def follow(key: Any, depth: int) -> Table:
    """A diagonal network of two layers in its dual form, on random data.

    `find_limit` on one regression: its `outcome`, the relative distance of β from the closed form (NaN where that is
    not found), and `steps`.
    """
    X, y = jax.random.normal(subkey(key, "X"), (N, D)), jax.random.normal(subkey(key, "y"), (N,))
    start = DiagonalLinearNetwork.init(subkey(key, "start"), LinearData(X, y), depth=depth, alpha=ALPHA, scheme="equal")
    limit = find_limit(regression(X, y), start, method=LinearStaged(coordinates=Dual(), rtol=1e-10), throw=False)
    # The oracle is solved from the data alone.
    closed = interpolation_limit(X, y, start.layers[0], depth)
    error = distance(limit.trajectory.final.model.linear_coefficients(), closed.singular)
    steps = limit.trajectory.stats["num_steps"]
    return Table(outcome=limit.outcome.value, error=jnp.where(closed.converged, error, jnp.nan), steps=steps)


# `limits` `(1, b)`.
ENSEMBLE = Dataset(
    "yun2021",
    "ensemble",
    {"limits": Part(follow, {"L=2": 2}, TRIALS, block=250)},
    where=f"{__name__}:ENSEMBLE",
)


LIMIT_POINT = Statement[Table](
    source="Theorem 4",
    says=f"Diagonal networks, L = 2, n = {N}, d = {D}, α = {ALPHA:g}: find_limit under vmap, every instance with its "
    "outcome.",
    residual=lambda n: np.where(n.limits.outcome == Outcome.limit_point.value, n.limits.error, np.nan),
    bound=POINT,
    unit="relative distance of β",
)

register(
    ENSEMBLE,
    title="Theorem 4 on a thousand instances",
    statements=[LIMIT_POINT],
)
