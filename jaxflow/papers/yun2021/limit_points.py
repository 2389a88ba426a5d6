r"""Theorem 4 with Corollaries 5 to 7: limit points of regression against the minimum of Q, solved from the data."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import linalg
from jaxflow.data import LinearData
from jaxflow.flow import Dual
from jaxflow.models import DeepMatrixSensing, DiagonalLinearNetwork, LinearConvolutionalNetwork, even_part
from jaxflow.papers.dataset import Dataset, Part
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Statement
from jaxflow.papers.table import Table
from jaxflow.papers.yun2021 import flows
from jaxflow.papers.yun2021.flows import POINT, distance, flow_end, normal_data, regression
from jaxflow.study import subkey
from jaxflow.theory import interpolation_limit, interpolation_program

DEPTHS = (2, 3, 4)
ALPHAS = (1.0, 0.1, 0.01)
# n data in d dimensions.
SIZES = {"quick": (2, 5), "paper": (5, 20), "large": (5, 20)}
TRIALS = {"quick": 2, "paper": 10, "large": 1000}
# The dual form reaches smaller starts: one α more.
SMALL = 1e-4
# Corollary 6 is held closer: its flow is low-dimensional.
EVEN = 1e-9


# A diagonal network of this depth on n data in d dimensions from a start of this size α, or in its dual form.
Setting = tuple[int, int, int, Any, bool]


def diagonal(key: Any, setting: Setting) -> Table:
    """Gaussian data, the start of Corollary 5."""
    depth, n, d, alpha, dual = setting
    X, y = normal_data(subkey(key, "data"), n, d)
    data = LinearData(X, y)
    start = DiagonalLinearNetwork.init(subkey(key, "start"), data, depth=depth, alpha=alpha, scheme="equal")
    closed = interpolation_limit(X, y, start.layers[0], depth)
    # From α = 0.1 on errors grow to a few hundred times the tolerance on the way.
    end = flow_end(regression(X, y), start, Dual() if dual else None, rtol=1e-11)
    return _compare(end, closed.singular, closed)


def even(key: Any, setting: None, n: int = 2, d: int = 6, depth: int = 3) -> Table:
    """Even data and an even start of a convolutional network, α = 0.3; and the solution of the program as printed."""
    X, y = normal_data(subkey(key, "data"), n, d)
    data = LinearData(even_part(X), y)
    start = LinearConvolutionalNetwork.init(subkey(key, "start"), data, depth=depth, alpha=0.3, scheme="equal")
    program = interpolation_program(start, data)
    closed = interpolation_limit(program.rows, y, program.norm.start, depth)
    # As printed, Fz itself is the argument of H: the same program with A and S divided by the factor.
    factor = d ** (0.5 * (depth - 1))
    printed = interpolation_limit(program.rows / factor, y, program.norm.start, depth)
    end = flow_end(regression(data.inputs, y), start, rtol=1e-10)
    wrong = program.coefficients(printed.singular) / factor
    return _compare(end, program.coefficients(closed.singular), closed, distance(wrong, end.beta))


def sensing(key: Any, setting: None, n: int = 2, d: int = 3, depth: int = 3) -> Table:
    """Sensor matrices with random common eigenvectors, not definite; α = 0.3."""
    vectors, _ = linalg.qr(jax.random.normal(subkey(key, "eigenvectors"), (d, d)))
    values, y = normal_data(subkey(key, "eigenvalues"), n, d)
    X = jnp.einsum("aj,nj,bj->nab", vectors, values, vectors).reshape(n, d * d)
    start = DeepMatrixSensing.init(subkey(key, "start"), LinearData(X, y), depth=depth, alpha=0.3)
    # From the eigenvalues that the sensors were made of: nothing of the code under test finds them.
    closed = interpolation_limit(values, y, jnp.full(d, 0.3), depth)
    product = jnp.einsum("aj,j,bj->ab", vectors, closed.singular, vectors)
    return _compare(flow_end(regression(X, y), start), product.reshape(-1), closed)


def _compare(end: flows.End, beta: Any, closed: Any, printed: Any = jnp.nan) -> Table:
    """A flow's limit point: relative distance `error` from the closed form, `printed`: from that of Corollary 6 as it
    is printed (NaN for the others); the duality `gap` of the closed form; whether both are known, `ok`.
    """
    return Table(
        error=distance(end.beta, beta),
        printed=jnp.asarray(printed),
        gap=jnp.abs(closed.gap),
        ok=end.ok & closed.converged,
    )


def _settings(scale: str) -> dict[str, Setting]:
    return {
        f"L={depth}, alpha={alpha:g}": (depth, *SIZES[scale], np.asarray(alpha), False)
        for depth in DEPTHS
        for alpha in ALPHAS
    }


def _small(scale: str) -> dict[str, Setting]:
    return {f"L=2, alpha={SMALL:g}": (2, *SIZES[scale], SMALL, True)}


# `diagonal` `(9, b)`: of each of `DEPTHS` at each of `ALPHAS`; `small`, `even`, `sensing` `(1, b)`.
POINTS = Dataset(
    "yun2021",
    "points",
    {
        "diagonal": Part(diagonal, _settings, TRIALS, way="in turn"),
        "small": Part(diagonal, _small, TRIALS, instances="diagonal", way="in turn"),
        "even": Part(even, {"L=3": None}, TRIALS, way="in turn"),
        "sensing": Part(sensing, {"L=3": None}, TRIALS, way="in turn"),
    },
    where=f"{__name__}:POINTS",
)


def minimises(
    part: str,
    source: str,
    says: str,
    rows: slice = slice(None),
    bound: float = POINT,
    unit: str = "relative distance of β",
    **more: Any,
) -> Statement[Table]:
    """The limit points of some cells of a part are those of the closed form."""

    def off(numbers: Table) -> np.ndarray:
        points = getattr(numbers, part)
        return np.where(points.ok, points.error, np.nan)[rows]

    return Statement(
        source=source,
        says=says,
        residual=off,
        bound=bound,
        unit=unit,
        **more,
    )


AS_PRINTED = Statement[Table](
    source="Corollary 6",
    says="as printed, with argument [Fz]_j/(α^L |[Fw]_j|^L): a misprint",
    residual=lambda n: np.where(n.even.ok, n.even.printed, np.nan),
    bound=EVEN,
    unit="relative distance of β",
)


def _of_depth(row: int) -> Statement[Table]:
    return minimises(
        "diagonal",
        "Theorem 4",
        f"diagonal networks, L = {DEPTHS[row]} (Corollary 5): the flow's limit is the minimum of Q",
        slice(row * len(ALPHAS), (row + 1) * len(ALPHAS)),
    )


register(
    POINTS,
    title="Theorem 4, Corollaries 5 to 7",
    statements=[
        *(_of_depth(row) for row in range(len(DEPTHS))),
        minimises("small", "Theorem 4", f"diagonal networks, L = 2, α = {SMALL:g}, in the dual form"),
        minimises(
            "even",
            "Corollary 6",
            "with the factor d^{(L−1)/2} restored: argument [Fz]_j/(d^{(L−1)/2} α^L |[Fw]_j|^L), L = 3, d = 6",
            bound=EVEN,
        ),
        AS_PRINTED,
        minimises(
            "sensing",
            "Corollary 7",
            "deep matrix sensing, L = 3, commuting sensor matrices: W_1…W_L minimises Q of its eigenvalues. "
            "(13) has no factor ½; the flow of ½(f − y)², which the proof writes, has the same limit",
            unit="relative distance of W_1…W_L",
        ),
    ],
)
