r"""Theorem 6: fully connected networks on regression; the bias as α → 0, with a fitted exponent."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.data import LinearData
from jaxflow.margin import minimum_norm, solve
from jaxflow.models import DeepLinearNetwork
from jaxflow.papers.experiment import Dataset, Part, Rate, Statement, Table, power_laws, register
from jaxflow.papers.yun2021.flows import distance, flow_end, normal_data, regression
from jaxflow.study import subkey
from jaxflow.theory import fully_connected_start

# Errors below this are none: from W̄ = I, w̄ = 0 the flow of two layers never leaves the row space of X.
ROUNDING = 1e-10
# Residuals of the outputs where the flow has ended.
FITTED = 1e-12
# The cells: depth and scheme of the start.
STARTS = (
    *((depth, scheme) for depth in (2, 3) for scheme in ("identity", "random")),
    *((depth, "orthogonal") for depth in (2, 3)),
)
# Layers of size 1.1 times that of the next, the last of length 1/2: λ is positive, and no layer is the identity.
GROWTH, LENGTH = 1.1, 0.5
# n data in d dimensions, and falling scales α.
SIZES = {
    "quick": (2, 3, (0.3, 0.1, 0.03)),
    "paper": (3, 6, (0.3, 0.1, 0.03, 0.01)),
    "large": (5, 10, (0.3, 0.1, 0.03, 0.01, 0.003)),
}
TRIALS = {"quick": 2, "paper": 5, "large": 50}


def follow(key: Any, setting: tuple[int, str, int, int, tuple[float, ...]]) -> Table:
    r"""One data set, one initial direction, every scale: depth and scheme of the start, n data in d dimensions, scales.

    At falling `alphas`: the relative distance `error` of β from the minimum-norm solution, the relative `residual` of
    the outputs, whether the flow was `followed`; `last`: $\lambda\alpha^2$ of part 1. All `(a,)`.
    """
    depth, scheme, n, d, scales = setting
    X, y = normal_data(subkey(key, "data"), n, d)
    aim = solve(minimum_norm(X, y)).primal

    def one(alpha: Any) -> Table:
        if scheme == "orthogonal":
            layers = orthogonal_layers(subkey(key, "start"), d, depth)
            start = DeepLinearNetwork(tuple(alpha * layer for layer in layers))
        else:
            data = LinearData(X, y)
            start = DeepLinearNetwork.init(subkey(key, "start"), data, depth=depth, alpha=alpha, scheme=scheme)
        end = flow_end(regression(X, y), start)
        last = fully_connected_start(start)[1].slack
        return Table(alphas=alpha, error=distance(end.beta, aim), residual=end.residual, followed=end.ok, last=last)

    return jax.lax.map(one, jnp.asarray(scales))


def orthogonal_layers(key: Any, d: int, depth: int) -> list[Any]:
    """Random orthogonal matrices, each larger than the next, and a short vector."""
    drawn = jax.random.orthogonal(subkey(key, "layers"), d, (depth - 1,))
    last = jax.random.normal(subkey(key, "last"), (d,))
    sizes = [GROWTH ** (depth - 2 - layer) for layer in range(depth - 1)]
    return [*(size * layer for size, layer in zip(sizes, drawn, strict=True)), LENGTH * last / jnp.linalg.norm(last)]


CONNECTED = Dataset(
    "yun2021",
    "connected",
    {
        "approaches": Part(
            follow,
            lambda scale: {f"L={depth}, {scheme}": (depth, scheme, *SIZES[scale]) for depth, scheme in STARTS},
            TRIALS,
            way="in turn",
        )
    },
)

WHERE = {
    "identity": "W̄_l = I, w̄_L = 0",
    "random": "random W̄_l, w̄_L",
    "orthogonal": f"W̄_l of orthogonal columns, each {GROWTH:g} times the next, ‖w̄_L‖ = {LENGTH:g}",
}


def loss_vanishes(row: int) -> Statement[Table]:
    """Part 1, from starts that satisfy its condition."""
    return Statement(
        source="Theorem 6",
        says=f"part 1, L = {STARTS[row][0]}: from {WHERE[STARTS[row][1]]} the loss tends to zero, for every α",
        of=lambda n: n.approaches.at(row),
        inside=lambda found: found.last > 0,
        residual=lambda found: np.where(found.followed, found.residual, np.nan),
        bound=(FITTED, "relative residual of the outputs"),
    )


def small_scale(row: int) -> Statement[Table]:
    """Part 2: the error against the minimum-norm solution falls with α, its exponent with an interval; from
    W̄_l = I, w̄_L = 0 there is none at any α."""
    depth, scheme = STARTS[row]
    exact = scheme == "identity"

    def residual(found: Table) -> np.ndarray:
        largest = (found.error if exact else np.diff(found.error, axis=1)).max(axis=1)
        return np.where(np.all(found.followed, axis=-1), largest, np.nan)

    def rate(found: Table, known: np.ndarray) -> Rate | None:
        kept = known & (np.min(found.error, axis=1) > ROUNDING)
        if not kept.any():
            return None
        # The largest of many scales is left out.
        count = max(3, found.alphas.shape[-1] - 1)
        slopes, halves = power_laws(np.log(found.alphas[kept][:, -count:]), found.error[kept][:, -count:])
        return Rate(float(slopes.mean()), float(halves.max()), None, law="error against α")

    return Statement(
        source="Theorem 6",
        says=f"part 2, L = {depth}, {WHERE[scheme]}: as α → 0, β tends to the minimum l2-norm solution",
        of=lambda n: n.approaches.at(row),
        residual=residual,
        bound=(ROUNDING, "error at any α" if exact else "growth of the error from one α to a smaller one"),
        rate=None if exact else rate,
    )


register(
    CONNECTED,
    title="Theorem 6",
    statements=[
        statement
        for row, (_, scheme) in enumerate(STARTS)
        for statement in [loss_vanishes(row)] * (scheme != "random") + [small_scale(row)] * (scheme != "orthogonal")
    ],
)
