"""`reproduce yun2021 alpha-sweep`: Theorem 4's limit between the least l1 and the least l2 norm, L = 2, 3, 4."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.data import LinearData
from jaxflow.margin import minimum_norm, solve
from jaxflow.models import DiagonalLinearNetwork
from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Dataset, Part, Rate, Statement, Table, power_laws, register
from jaxflow.papers.yun2021.flows import POINT, distance, flow_end, normal_data, regression
from jaxflow.plots import CURVES, new_figure
from jaxflow.study import subkey
from jaxflow.theory import interpolation_limit

DEPTHS = (2, 3, 4)
# Ends of the curves, at which the excess is fitted, and the accuracy of the norms of closed forms.
SMALL, LARGE, FLAT = 1e-2, 1e2, 1e-9
# n data in d dimensions, and how many α from 1e-4 to 1e3 on the curves.
SIZES = {"quick": (3, 8, 25), "paper": (5, 20, 61), "large": (5, 20, 121)}
FLOW_ALPHAS = (0.01, 0.1, 1.0, 10.0)
# Depths of the flows, which take far longer than closed forms.
FLOW_DEPTHS = {"quick": (2,), "paper": (2, 3), "large": (2, 3, 4)}
TRIALS = {"quick": 1, "paper": 1, "large": 10}

# Networks of a depth on n data in d dimensions, at these scales.
Setting = tuple[int, int, int, tuple[float, ...]]


def _excess(X: Any, y: Any, rho: Any) -> dict[str, Any]:
    least = [solve(minimum_norm(X, y, norm)).primal for norm in ("l1", "l2")]
    one, two = jnp.sum(jnp.abs(rho), axis=1), jnp.linalg.norm(rho, axis=1)
    return {"l1": one / jnp.sum(jnp.abs(least[0])) - 1.0, "l2": two / jnp.linalg.norm(least[1]) - 1.0}


def closed(key: Any, setting: Setting) -> Table:
    r"""The limits of Theorem 4 in closed form from w̄ = 1, of one data set and depth at a scales `alphas`: their norms,
    $\|\rho^\infty\|_1$ and $\|\rho^\infty\|_2$, over their minima among interpolations, minus one, `l1` and `l2`;
    whether they were `found`. All `(a,)`."""
    depth, n, d, scales = setting
    (X, y), alphas = normal_data(subkey(key, "data"), n, d), jnp.asarray(scales)
    found = jax.lax.map(lambda a: interpolation_limit(X, y, jnp.full(d, a), depth), alphas)
    return Table(_excess(X, y, found.singular), alphas=alphas, found=found.converged)


def follow(key: Any, setting: Setting) -> Table:
    """Where flows end: the same of the flow's limit, as of the closed form; `error`: the relative distance of both."""
    depth, n, d, scales = setting
    X, y = normal_data(subkey(key, "data"), n, d)

    def one(alpha: Any) -> tuple[Any, ...]:
        data = LinearData(X, y)
        start = DiagonalLinearNetwork.init(jax.random.key(0), data, depth=depth, alpha=alpha, scheme="identity")
        # As in `limit_points`: errors grow to a few hundred times the tolerance on the way.
        end = flow_end(regression(X, y), start, rtol=1e-11)
        aim = interpolation_limit(X, y, start.layers[0], depth)
        return end.beta, distance(end.beta, aim.singular), end.ok & aim.converged

    alphas = jnp.asarray(scales)
    beta, error, ok = jax.lax.map(one, alphas)
    return Table(_excess(X, y, beta), alphas=alphas, error=error, found=ok)


def _curves(scale: str) -> dict[str, Setting]:
    n, d, count = SIZES[scale]
    alphas = tuple(np.geomspace(1e-4, 1e3, count).tolist())
    return {f"L={depth}": (depth, n, d, alphas) for depth in DEPTHS}


def _flows(scale: str) -> dict[str, Setting]:
    alphas = FLOW_ALPHAS[1:3] if scale == "quick" else FLOW_ALPHAS
    return {f"L={depth}": (depth, *SIZES[scale][:2], alphas) for depth in FLOW_DEPTHS[scale]}


SWEEP = Dataset(
    "yun2021",
    "alpha-sweep",
    {
        "curves": Part(closed, _curves, TRIALS, way="in turn"),
        "flows": Part(follow, _flows, TRIALS, instances="curves", way="in turn"),
    },
)


def _ends(numbers: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The excess of each norm towards its end, `(3, b, *)`, and for all of both whether it was found, `(2, 3, b)`."""
    curves = numbers.curves
    small, large = curves.alphas[0, 0] <= SMALL, curves.alphas[0, 0] >= LARGE
    found = np.stack([curves.found[..., end].all(axis=-1) for end in (small, large)])
    return curves.l1[..., small], curves.l2[..., large], found


def _rises(numbers: Table) -> np.ndarray:
    """The largest rise of the excess towards its end, of l1 and l2, `(2, 3, b)`; below rounding nothing is left to
    fall."""
    l1, l2, found = _ends(numbers)
    rises = [np.where(one > FLAT, np.diff(values, axis=-1), -np.inf).max(axis=-1) for values, one in
             ((l1[..., ::-1], l1[..., -2::-1]), (l2, l2[..., 1:]))]  # fmt: skip
    return np.where(found, np.maximum(rises, -1.0), np.nan)


def _slowest(numbers: Table, known: np.ndarray) -> Rate | None:
    """L = 2 approaches the l1 norm like a power of log(1/α)."""
    small = numbers.curves.alphas[0, 0] <= SMALL
    x = np.log(np.log(1.0 / numbers.curves.alphas[0, 0, small]))
    slopes, halves = power_laws(x, np.maximum(numbers.curves.l1[0][:, small], np.finfo(float).tiny))
    return Rate(-slopes.mean(), halves.max(), None, law="excess of the l1 norm at L = 2 against log(1/α)")


MINIMISES = Statement[Table](
    source="Theorem 4",
    says="β converges to the minimum of Q among interpolations.",
    residual=lambda n: np.where(n.flows.found, n.flows.error, np.nan),
    bound=(POINT, "relative distance of β"),
)
BETWEEN = Statement[Table](
    source="Remark 4",
    says="Q interpolates between the l1 norm (α → 0) and the l2 norm (α → ∞).",
    residual=_rises,
    bound=(0.0, "rise of the excess towards its end"),
    rate=_slowest,
)


def draw(numbers: Table) -> Any:
    r"""$\|\rho^\infty\|_1$ and $\|\rho^\infty\|_2$ over their minima against α; lines: closed form, circles: flows."""
    figure, axes = new_figure(2, width=10.0, height=3.8)
    for p, axis in enumerate(axes, start=1):
        for row, (depth, color) in enumerate(zip(DEPTHS, CURVES, strict=False)):
            curves, flows = numbers.curves, numbers.flows
            axis.plot(curves.alphas[row, 0], (curves.l1, curves.l2)[p - 1][row, 0], color=color, label=rf"$L={depth}$")
            if row < len(flows.found):
                ok = flows.found[row, 0]
                values = (flows.l1, flows.l2)[p - 1][row, 0]
                axis.plot(flows.alphas[row, 0][ok], values[ok], "o", color=color, markerfacecolor="none")
        axis.set_yscale("symlog", linthresh=1e-3)
        excess = rf"$\|\rho^\infty\|_{p}\,/\,\min\|\rho\|_{p}-1$"
        dress(axis, x=r"initial scale $\alpha$", y=excess, log="x", ylim=(0, None))
    axes[0].plot([], [], "o", color="#555555", markerfacecolor="none", label="flow")
    axes[0].legend(frameon=False, fontsize=9)
    return figure


register(
    SWEEP,
    title="Theorem 4: the limit point between least l1 norm (small starts) and least l2 norm (large ones)",
    statements=[MINIMISES, BETWEEN],
    notes=lambda n: [
        "L = 2 approaches the l1 norm like a power of log(1/α), L > 2 like a power of α.",
        f"Closed forms converged: {int(n.curves.found.sum())} of {n.curves.found.size}.",
    ],
    draw=draw,
)
