r"""Theorem 4 with Corollaries 5 to 7: limit points of regression against the minimum of Q, solved from the data."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import root

from jaxflow._core import Outcome, linalg
from jaxflow.data import LinearData
from jaxflow.flow import Dual
from jaxflow.limits import LinearStaged, find_limit
from jaxflow.models import (
    Decomposition,
    DeepMatrixSensing,
    DiagonalLinearNetwork,
    LinearConvolutionalNetwork,
    LinearTensorNetwork,
    even_part,
)
from jaxflow.papers.experiment import Again, Dataset, Draw, Part, Statement, Table, register
from jaxflow.papers.independent import RTOL
from jaxflow.papers.yun2021.flows import POINT, distance, flow_end, normal_data, random_decomposition, regression
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
# Depth, and how many rows S has beyond its columns; α, and where SciPy's flows end: a tenth of it leaves 1e-9.
TRANSFORMS = ((2, 1), (3, 0), (4, 1))
START, UNTIL = 0.3, 1e4

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


def transformed(key: Any, setting: tuple[int, int]) -> Table:
    """A random S `(d + rows, d)` and random U_l; (depth, rows)."""
    X, y, parts, eta = draw_transformed(key, *setting)
    depth, size = setting[0], START * eta
    layers = (*(U @ size for U in parts.factors[:-1]), jnp.zeros(parts.factors[-1].shape[0]))
    closed = interpolation_limit(X @ parts.transform.T, y, size, depth)
    end = flow_end(regression(X, y), LinearTensorNetwork.from_decomposition(parts, layers), rtol=1e-10)
    return _compare(end, parts.transform.T @ closed.singular, closed)


def draw_transformed(key: Any, depth: int, rows: int, n: int = 2, d: int = 4) -> tuple[Any, Any, Decomposition, Any]:
    r"""X, y, the decomposition, and $\bar\eta$ of both signs."""
    X, y = normal_data(subkey(key, "data"), n, d)
    m = d + rows
    sizes = 1.0 + jax.random.uniform(subkey(key, "sizes"), (m,))
    eta = sizes * jax.random.rademacher(subkey(key, "signs"), (m,))
    return X, y, random_decomposition(key, m, d, depth), eta


def even(key: Any, setting: None) -> Table:
    """Even data and an even start of a convolutional network; and the solution of the program as printed."""
    data, start = draw_even(key)
    X, y, (d, depth) = data.inputs, data.targets, (data.inputs.shape[1], len(start.layers))
    program = interpolation_program(start, data)
    closed = interpolation_limit(program.rows, y, program.norm.start, depth)
    # As printed, Fz itself is the argument of H: the same program with A and S divided by the factor.
    factor = d ** (0.5 * (depth - 1))
    printed = interpolation_limit(program.rows / factor, y, program.norm.start, depth)
    end = flow_end(regression(X, y), start, rtol=1e-10)
    wrong = program.coefficients(printed.singular) / factor
    return _compare(end, program.coefficients(closed.singular), closed, distance(wrong, end.beta))


def draw_even(key: Any, n: int = 2, d: int = 6, depth: int = 3) -> tuple[LinearData, LinearConvolutionalNetwork]:
    """Data and start, α = 0.3."""
    X, y = normal_data(subkey(key, "data"), n, d)
    data = LinearData(even_part(X), y)
    start = LinearConvolutionalNetwork.init(subkey(key, "start"), data, depth=depth, alpha=0.3, scheme="equal")
    return data, start


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


def _compare(end: Table, beta: Any, closed: Any, printed: Any = jnp.nan) -> Table:
    """A flow's limit point: relative distance `error` from the closed form, `printed`: from that of Corollary 6 as it
    is printed (NaN for the others); whether both are known, `ok`.
    """
    return Table(error=distance(end.beta, beta), printed=jnp.asarray(printed), ok=end.ok & closed.converged)


POINTS = Dataset(
    "yun2021",
    "points",
    {
        "diagonal": Part(
            diagonal,
            lambda scale: {
                f"L={depth}, alpha={alpha:g}": (depth, *SIZES[scale], np.asarray(alpha), False)
                for depth in DEPTHS
                for alpha in ALPHAS
            },
            TRIALS,
            way="in turn",
        ),
        "small": Part(
            diagonal,
            lambda scale: {f"L=2, alpha={SMALL:g}": (2, *SIZES[scale], SMALL, True)},
            TRIALS,
            instances="diagonal",
            way="in turn",
        ),
        "transformed": Part(transformed, {f"L={one[0]}": one for one in TRANSFORMS}, TRIALS, way="in turn"),
        "even": Part(even, {"L=3": None}, TRIALS, way="in turn"),
        "sensing": Part(sensing, {"L=3": None}, TRIALS, way="in turn"),
    },
)


def minimises(
    part: str,
    source: str,
    says: str,
    rows: slice = slice(None),
    bound: tuple[float, str] = (POINT, "relative distance of β"),
    **more: Any,
) -> Statement[Table]:
    """The limit points of some cells of a part are those of the closed form."""
    return Statement(
        source=source,
        says=says,
        residual=lambda n: np.where(getattr(n, part).ok, getattr(n, part).error, np.nan)[rows],
        bound=bound,
        **more,
    )


def end_of_layers(layers: list[np.ndarray], parts: tuple[np.ndarray, ...], X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """β where the flow of the layers ends, by LSODA; `parts`: S and U_l. NaN where it fails."""
    S, *factors = parts
    depth, places, rows = len(factors), np.cumsum([len(U) for U in factors])[:-1], X @ S.T

    def coefficients(flat: np.ndarray) -> np.ndarray:
        return np.asarray([U.T @ v for U, v in zip(factors, np.split(flat, places), strict=True)])

    def velocity(t: float, flat: np.ndarray) -> np.ndarray:
        eta = coefficients(flat)
        pull = rows.T @ (y - rows @ np.prod(eta, axis=0))
        others = [np.prod(np.delete(eta, layer, axis=0), axis=0) for layer in range(depth)]
        return np.concatenate([U @ (pull * rest) for U, rest in zip(factors, others, strict=True)])

    start = np.concatenate(layers)
    path = solve_ivp(velocity, (0.0, UNTIL), start, method="LSODA", rtol=RTOL, atol=1e-2 * RTOL)
    return S.T @ np.prod(coefficients(path.y[:, -1]), axis=0) if path.success else np.full(X.shape[1], np.nan)


def least_q(rows: np.ndarray, y: np.ndarray, size: np.ndarray, depth: int) -> np.ndarray:
    """The ρ of least Q, `size` α|η̄|, that interpolates, by MINPACK on its KKT conditions; NaN where that fails."""
    # p_L = cosh s and q_L = sinh s, at t of h_L.
    times = {2: lambda s: s, 3: lambda s: np.arctan(np.sinh(s)), 4: np.tanh}[depth]

    def rho(s: np.ndarray) -> np.ndarray:
        return size**depth * np.cosh(s) ** (depth - 1) * np.sinh(s)

    def conditions(x: np.ndarray) -> np.ndarray:
        s, dual = np.split(x, [len(size)])
        return np.concatenate([rows @ rho(s) - y, times(s) * size ** (2 - depth) - rows.T @ dual])

    found = root(conditions, np.zeros(len(size) + len(y)), method="lm", options={"xtol": 1e-12, "ftol": 1e-12})
    return rho(found.x[: len(size)]) if found.success else np.full_like(size, np.nan)


def _corollary_6_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    data, start = draw_even(draw.instance("even", at[1], at[0])[0])
    X, y, layers = np.asarray(data.inputs), np.asarray(data.targets), [np.asarray(one) for one in start.layers]
    # F of even vectors is real, and its own inverse.
    F = np.fft.fft(np.eye(X.shape[1]), norm="ortho").real
    factor = len(F) ** (0.5 * (len(layers) - 1))
    end = end_of_layers(layers, (factor * F, *[F] * len(layers)), X, y)
    aim = F @ least_q(X @ F, y, np.abs(F @ layers[0]), len(layers))
    return float(np.linalg.norm(aim - end) / np.linalg.norm(end))


def _theorem_4_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    key, setting = draw.instance("transformed", at[1], at[0])
    X, y, parts, eta = draw_transformed(key, *setting)
    S, *factors = (np.asarray(one) for one in (parts.transform, *parts.factors))
    X, y, first = np.asarray(X), np.asarray(y), START * np.asarray(eta)
    layers = [*(U @ first for U in factors[:-1]), np.zeros(len(factors[-1]))]
    end = end_of_layers(layers, (S, *factors), X, y)
    aim = S.T @ least_q(X @ S.T, y, np.abs(first), len(factors))
    return float(np.linalg.norm(end - aim) / np.linalg.norm(aim))


AS_PRINTED = Statement[Table](
    source="Corollary 6",
    says="as printed, with argument [Fz]_j/(α^L |[Fw]_j|^L): a misprint",
    residual=lambda n: np.where(n.even.ok, n.even.printed, np.nan),
    bound=(EVEN, "relative distance of β"),
    again=Again("LSODA and MINPACK of SciPy", _corollary_6_again, 1e-6),
)


MANY = {"quick": 50, "paper": 1000, "large": 100_000}
SHAPE, ALPHA = (5, 20), 0.1


def follow(key: Any, depth: int) -> Table:
    """A diagonal network of two layers in its dual form, on random data.

    `find_limit` on one regression: its `outcome`, and the relative distance of β from the closed form (NaN where that
    is not found).
    """
    X, y = jax.random.normal(subkey(key, "X"), SHAPE), jax.random.normal(subkey(key, "y"), SHAPE[:1])
    start = DiagonalLinearNetwork.init(subkey(key, "start"), LinearData(X, y), depth=depth, alpha=ALPHA, scheme="equal")
    limit = find_limit(regression(X, y), start, method=LinearStaged(coordinates=Dual(), rtol=1e-10), throw=False)
    # The oracle is solved from the data alone.
    closed = interpolation_limit(X, y, start.layers[0], depth)
    error = distance(limit.trajectory.final.model.linear_coefficients(), closed.singular)
    return Table(outcome=limit.outcome.value, error=jnp.where(closed.converged, error, jnp.nan))


ENSEMBLE = Dataset("yun2021", "ensemble", {"limits": Part(follow, {"L=2": 2}, MANY, block=250)})

LIMIT_POINT = Statement[Table](
    source="Theorem 4",
    says=f"Diagonal networks, L = 2, n = {SHAPE[0]}, d = {SHAPE[1]}, α = {ALPHA:g}: find_limit under vmap, every "
    "instance with its outcome.",
    residual=lambda n: np.where(n.limits.outcome == Outcome.limit_point.value, n.limits.error, np.nan),
    bound=(POINT, "relative distance of β"),
)

register(ENSEMBLE, title="Theorem 4 on a thousand instances", statements=[LIMIT_POINT])

register(
    POINTS,
    title="Theorem 4, Corollaries 5 to 7",
    statements=[
        *(
            minimises(
                "diagonal",
                "Theorem 4",
                f"diagonal networks, L = {depth} (Corollary 5): the flow's limit is the minimum of Q",
                slice(row * len(ALPHAS), (row + 1) * len(ALPHAS)),
            )
            for row, depth in enumerate(DEPTHS)
        ),
        minimises(
            "transformed",
            "Theorem 4",
            "random S, with more rows than columns (L = 2, 4) or invertible (L = 3), and random U_l: β tends to S^T ρ, "
            "ρ the minimum of Q",
            again=Again("LSODA and MINPACK of SciPy", _theorem_4_again, 1e-6),
        ),
        minimises("small", "Theorem 4", f"diagonal networks, L = 2, α = {SMALL:g}, in the dual form"),
        minimises(
            "even",
            "Corollary 6",
            "with the factor d^{(L−1)/2} restored: argument [Fz]_j/(d^{(L−1)/2} α^L |[Fw]_j|^L), L = 3, d = 6",
            bound=(EVEN, "relative distance of β"),
        ),
        AS_PRINTED,
        minimises(
            "sensing",
            "Corollary 7",
            "deep matrix sensing, L = 3, commuting sensor matrices: W_1…W_L minimises Q of its eigenvalues. "
            "(13) has no factor ½; the flow of ½(f − y)², which the proof writes, has the same limit",
            bound=(POINT, "relative distance of W_1…W_L"),
        ),
    ],
)
