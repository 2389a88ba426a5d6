"""`reproduce yun2021 filters`: Corollary 4's filtered directions, and filters longer than 2."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.data import LinearData
from jaxflow.margin import max_margin, solve
from jaxflow.models import LinearConvolutionalNetwork
from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Dataset, Statement, Sweep, Table, register, stacked
from jaxflow.papers.yun2021.closed_forms import direction_limit, filtered_direction
from jaxflow.papers.yun2021.flows import direction_distance, far_out
from jaxflow.plots import CURVES, new_figure
from jaxflow.study import subkey

D = 8
LENGTHS = {"quick": (1, 2, 3, D), "paper": tuple(range(1, D + 1)), "large": tuple(range(1, D + 1))}
FAR = 150.0
DIRECTION = 1e-8
# At a length of e^150 a component with s_2/s_1 = 0.98 still adds the larger to β: between them nothing is decided.
CLOSE, OFF = 1e-6, 5e-2


def sweep(scale: str, key: Any) -> Table:
    r"""Of one data point its `correlation` at lag one, and for each of k filter `lengths` the unit limit
    direction `beta` `(k, d)`, its distance `error` from the predicted one, the `rate` of the singular gap and the
    `size` $\log\|\beta\|$ at the end `(k,)`; unit directions of three programs, `l2`, `dft`, `filtered` `(d,)`."""
    x, y = jax.random.normal(subkey(key, "x"), (D,)), jnp.ones(())
    end = jax.jit(_end, static_argnums=0)
    ends = stacked(end(length, x, y, subkey(key, "start")) for length in LENGTHS[scale])
    fourier = max_margin(x[None], y[None], "l1", "dft")
    filtered, correlation = filtered_direction(x, y)
    aims = {"l2": x, "dft": fourier.coefficients(solve(fourier).primal), "filtered": filtered}
    units = {name: np.asarray(aim) / np.linalg.norm(np.asarray(aim)) for name, aim in aims.items()}
    return Table(units | ends.named, correlation=np.asarray(correlation), lengths=np.asarray(LENGTHS[scale]))


def _end(length: int, x: Any, y: Any, key: Any) -> Table:
    data = LinearData(x[None], y[None])
    start = LinearConvolutionalNetwork.init(key, data, sizes=(length,), scheme="zero_last")
    predicted = direction_limit(start, x, y)
    beta = far_out(start, x, y, FAR).final.model.linear_coefficients()
    size = jnp.linalg.norm(beta)
    error = direction_distance(beta, predicted.coefficients)
    return Table(beta=beta / size, error=error, rate=predicted.rate, size=jnp.log(size))


# `limits`: of 2-layer convolutional networks on one data point, d = 8.
FILTERS = Dataset("yun2021", "filters", {"limits": Sweep(sweep)})


def _resolved(numbers: Table) -> np.ndarray:
    """Lengths whose singular gap allows the accuracy; where it does not, the end of the path decides nothing."""
    limits = numbers.limits
    allowed = 0.5 * limits.rate * limits.size < np.log(DIRECTION) - 5.0
    return np.where(allowed | (limits.lengths == 1), limits.error, np.nan)


ANY_LENGTH = Statement[Table](
    source="Theorem 3",
    says="v_1 and v_2 converge in direction to top singular vectors of M(x), for filters of any length.",
    residual=_resolved,
    bound=(DIRECTION, "distance of β from the predicted direction"),
)


def aligned(length: int, says: str, aim: str) -> Statement[Table]:
    """Filters of one length, and the direction that a corollary names."""

    def off(numbers: Table) -> np.ndarray:
        limits = numbers.limits
        row = limits.lengths.tolist().index(length)
        return np.linalg.norm(limits.beta[row : row + 1] - getattr(limits, aim), axis=1)

    return Statement(
        source="Corollary 3" if length == D else "Corollary 4",
        says=says,
        residual=lambda n: np.where((off(n) > CLOSE) & (off(n) <= OFF), np.nan, off(n)),
        bound=(CLOSE, "distance of unit vectors"),
    )


def draw(numbers: Table) -> Any:
    r"""The limit direction of β for some filter lengths, and how far it is from three known directions for each."""
    figure, (left, right) = new_figure(2, width=11.0, height=3.9)
    limits = numbers.limits
    shown = [k for k in (1, 2, 3, D) if k in limits.lengths]
    width = 0.8 / len(shown)
    for i, (k, color) in enumerate(zip(shown, CURVES, strict=False)):
        places = np.arange(1, D + 1) + (i - 0.5 * (len(shown) - 1)) * width
        left.bar(places, limits.beta[limits.lengths.tolist().index(k)], width, color=color, label=rf"$k_1={k}$")
    dress(left, x="$j$", y=r"$[\beta]_j/\|\beta\|$", xticks=range(1, D + 1))
    left.legend(frameon=False, fontsize=9, ncols=2)
    lines = (
        (limits.l2, r"$x$ ($\ell_2$ max-margin)", "-o"),
        (limits.filtered, "Corollary 4", "--s"),
        (limits.dft, r"DFT $\ell_1$", "-.^"),
    )
    for (aim, label, line), color in zip(lines, CURVES, strict=False):
        apart = np.linalg.norm(limits.beta - aim[None], axis=1)
        right.plot(limits.lengths, np.maximum(apart, 1e-16), line, color=color, label=label)
    labels = ("filter length $k_1$", "distance of unit vectors")
    dress(right, "", *labels, log="y", legend=9, xticks=limits.lengths)
    return figure


register(
    FILTERS,
    title="Theorem 3 and Corollary 4: filtered versions of one data point, filters of every length",
    statements=[
        ANY_LENGTH,
        aligned(1, "k_1 = 1: β aligns with yx, the l2 max-margin direction.", "l2"),
        aligned(2, "k_1 = 2: β aligns with 2yx ± y(←x + →x), by the sign of the autocorrelation.", "filtered"),
        aligned(D, "k_1 = d: β aligns with the DFT-domain l1 max-margin direction.", "dft"),
    ],
    notes=lambda n: [f"The autocorrelation of x is {float(n.limits.correlation):.3f}."],
    draw=draw,
)
