"""`reproduce yun2021 alpha-sweep`: Theorem 4's limit between the least l1 and the least l2 norm, L = 2, 3, 4."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.data import LinearData
from jaxflow.margin import minimum_norm, solve
from jaxflow.models import DiagonalLinearNetwork
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.yun2021.verify.shared import distance, fit, flow_end, map_instances, regression
from jaxflow.plots.linear_curves import draw_alpha_sweep
from jaxflow.report import Claim, Evidence, Rate, bounded_evidence, count_evidence
from jaxflow.theory import interpolation_limit

DEPTHS = (2, 3, 4)
# The flow's limit, integrated at rtol 1e-9, against the closed form.
FLOW = 1e-8
# Ends of the curves, at which the excess is fitted, and the accuracy of the norms of closed forms.
SMALL, LARGE, FLAT = 1e-2, 1e2, 1e-9


class Size(NamedTuple):
    """Data sets n × d; α of the curves (closed form) and of the flows, and the depths of the flows."""

    n: int
    d: int
    curve: int
    flows: tuple[float, ...]
    depths: tuple[int, ...]


SIZES = {
    "quick": Size(3, 8, 25, (0.1, 1.0), (2,)),
    "paper": Size(5, 20, 61, (0.01, 0.1, 1.0, 10.0), (2, 3)),
    "large": Size(5, 20, 121, (0.01, 0.1, 1.0, 10.0), (2, 3, 4)),
}


@register_figure(
    "yun2021",
    "alpha-sweep",
    title="Theorem 4: the limit point between least l1 norm (small starts) and least l2 norm (large ones)",
    run_times={
        "quick": "75 limits in closed form, 2 flows, some seconds",
        "paper": "183 limits in closed form, 8 flows, about a minute",
        "large": "363 limits in closed form, 12 flows, some minutes",
    },
)
class AlphaSweep(AbstractFigure):
    r"""Excess of $\|\rho^\infty\|_1$ and $\|\rho^\infty\|_2$ over their minima, for α from 1e-4 to 1e3, $\bar w=1$."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        size = SIZES[scale]
        x_key, y_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 4))
        X, y = jax.random.normal(x_key, (size.n, size.d)), jax.random.normal(y_key, (size.n,))
        least = [solve(minimum_norm(X, y, norm)) for norm in ("l1", "l2")]
        best = [float(jnp.sum(jnp.abs(least[0].primal))), float(jnp.linalg.norm(least[1].primal))]
        alphas = jnp.geomspace(1e-4, 1e3, size.curve)
        data: Data = {"alphas": np.asarray(alphas), "depths": np.asarray(DEPTHS), "best": np.asarray(best)}
        curves: dict[str, list[np.ndarray]] = {}
        for depth in DEPTHS:
            say(f"L = {depth}: {size.curve} limits in closed form")
            found = map_instances(lambda a, L=depth: _closed(X, y, a, L), alphas)
            for name, value in found.items():
                curves.setdefault(name, []).append(value)
        data |= {name: np.stack(values) for name, values in curves.items()}
        flows = []
        for depth in size.depths:
            say(f"L = {depth}: {len(size.flows)} flows")
            found = map_instances(lambda a, L=depth: _flow(X, y, a, L), jnp.asarray(size.flows))
            flows += [
                (depth, a, n1, n2, error, ok)
                for a, n1, n2, error, ok in zip(
                    size.flows, found["l1"], found["l2"], found["error"], found["followed"], strict=True
                )
            ]
        return data | {"flows": np.asarray(flows, float)}

    def draw(self, data: Data) -> Any:
        return draw_alpha_sweep(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        flows = data["flows"]
        done = flows[:, 5] > 0
        worst = float(flows[done, 4].max(initial=0.0))
        small, large = data["l1"][:, 0] / data["best"][0] - 1, data["l2"][:, -1] / data["best"][1] - 1
        ends = max(float(small.max()), float(large.max()))
        return [
            Claim(
                "Theorem 4",
                "β converges to the minimum of Q among interpolations.",
                f"{int(done.sum())} of {len(flows)} flows reached the limit, the farthest {worst:.1e} off (relative)",
                bounded_evidence(np.where(done, flows[:, 4], np.nan), FLOW),
                {"worst": worst, "flows": int(done.sum())},
            ),
            Claim(
                "Remark 4",
                "Q interpolates between the l1 norm (α → 0) and the l2 norm (α → ∞).",
                f"excess of the l1 norm at α = {data['alphas'][0]:.0e}: "
                + ", ".join(f"{v:.1e} (L = {L})" for v, L in zip(small, DEPTHS, strict=True))
                + f"; of the l2 norm at α = {data['alphas'][-1]:.0e}: {large.max():.1e} or less",
                _approach(data),
                {"largest": ends},
            ),
        ], [
            "L = 2 approaches the l1 norm like a power of log(1/α), L > 2 like a power of α.",
            f"Closed forms converged: {int(data['converged'].sum())} of {data['converged'].size}.",
        ]


def _approach(data: Data) -> Evidence:
    r"""Curves of the excess, by depth, towards either end: each must fall, the slowest of them with a rate."""
    alphas = data["alphas"]
    small, large = alphas <= SMALL, alphas >= LARGE
    l1, l2 = data["l1"] / data["best"][0] - 1, data["l2"] / data["best"][1] - 1
    # Below rounding there is nothing left to fall.
    falls = [np.all((np.diff(one) >= 0) | (one[1:] <= FLAT)) for one in l1[:, small]]
    falls += [np.all((np.diff(one) <= 0) | (one[:-1] <= FLAT)) for one in l2[:, large]]
    slowest = np.maximum(l1[0, small], np.finfo(float).tiny)
    slope, half = fit(np.log(np.log(1.0 / alphas[small])), np.log(slowest))
    rate = Rate(-slope, half, None, law="excess of the l1 norm at L = 2 against log(1/α)")
    solved = np.concatenate([data["converged"][:, small].all(axis=1), data["converged"][:, large].all(axis=1)])
    return count_evidence(np.asarray(falls), decided=solved, limit=True, rate=rate)


def _closed(X: Any, y: Any, alpha: Any, depth: int) -> dict[str, Any]:
    found = interpolation_limit(X, y, jnp.full(X.shape[1], alpha), depth)
    rho = found.singular
    return {"l1": jnp.sum(jnp.abs(rho)), "l2": jnp.linalg.norm(rho), "converged": found.converged}


def _flow(X: Any, y: Any, alpha: Any, depth: int) -> dict[str, Any]:
    data = LinearData(X, y)
    start = DiagonalLinearNetwork.init(jax.random.key(0), data, depth=depth, alpha=alpha, scheme="identity")
    found = flow_end(regression(X, y), start)
    beta = found["beta"]
    closed = interpolation_limit(X, y, start.layers[0], depth).singular
    return {
        "l1": jnp.sum(jnp.abs(beta)),
        "l2": jnp.linalg.norm(beta),
        "error": distance(beta, closed),
        "followed": found["followed"],
    }
