r"""Limit points of gradient flow in extended precision, from NumPy and SciPy alone: references of `printed_errors.py`.

Each takes one instance (inputs, targets, start) in `numpy.longdouble`, and last the point that was found: iterations
that converge to the nearest stationary point begin there. None: the instance has no such point.
"""

from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp

Vector = np.ndarray
# Of an iteration that is quadratic, in extended precision.
MOST_STEPS = 100


def newton(x: Vector, step: Callable[[Vector], tuple[Vector, Vector]]) -> Vector | None:
    """Where a residual is zero, by its derivative in double precision: the residual alone has to be exact. Ends where
    steps are roundings and no longer shrink."""
    last = np.inf
    for _ in range(MOST_STEPS):
        residual, slope = step(x)
        change = np.linalg.lstsq(slope.astype(float), -residual.astype(float), rcond=None)[0]
        x, size = x + change, float(np.linalg.norm(change))
        rounding = 1e-14 * (1.0 + np.linalg.norm(x.astype(float)))
        if size == 0 or (size <= rounding and size > last / 2):
            return x
        last = size
    return None


def grown(first: Vector, second: Vector, rate: Vector) -> tuple[Vector, Vector]:
    r"""Both parts of a pair with $\dot a=sb$, $\dot b=sa$ after $\int s=$ `rate`."""
    plus, minus = (first + second) * np.exp(rate) / 2, (first - second) * np.exp(-rate) / 2
    return plus + minus, plus - minus


def root(output: Callable[[np.longdouble], np.longdouble], target: np.longdouble, rate: np.longdouble) -> np.longdouble:
    """Where an increasing function has a value, by bisection; `rate`: its argument times this is an exponent."""
    low, high = -60 / rate, 60 / rate
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (low, middle) if output(middle) > target else (middle, high)
    return (low + high) / 2


def diagonal(x: Vector, y: Vector, first: Vector, second: Vector, _: Vector) -> Vector | None:
    r"""$\beta=uv$ with $u\pm v$ times $e^{\pm X^\top\nu}$: the dual of a strictly convex function, by damped Newton."""

    def coefficients(nu: Vector) -> Vector:
        return np.prod(grown(first, second, nu @ x), axis=0)

    def value(nu: Vector) -> np.longdouble:
        u, v = grown(first, second, nu @ x)
        return np.sum(u**2 + v**2) / 4 - nu @ y

    nu = np.zeros(len(y), np.longdouble)
    for _ in range(10 * MOST_STEPS):
        u, v = grown(first, second, nu @ x)
        missing = y - x @ (u * v)
        change = np.linalg.solve(((x * (u**2 + v**2)) @ x.T).astype(float), missing.astype(float))
        # No exponent grows by more than one in a step.
        share = 1.0 / max(1.0, np.abs(change @ x.astype(float)).max())
        while share > 1e-12 and not value(nu + share * change) <= value(nu) + 1e-18 * abs(value(nu)):
            share /= 2
        if share <= 1e-12 or np.linalg.norm(change) <= 1e-18 * np.linalg.norm(nu.astype(float)):
            break
        nu = nu + share * change
    missing = np.abs(x @ coefficients(nu) - y).max()
    return coefficients(nu) if missing <= 1e-16 * np.abs(y).max() else None


def connected(x: Vector, y: Vector, W: Vector, w: Vector, _: Vector) -> Vector:
    r"""One datum moves $W^\top x/|x|$ and $w$ alone, which are a pair."""
    size = np.sqrt(np.sum(x[0] ** 2))
    unit = x[0] / size
    begun = W.T @ unit
    nu = root(lambda nu: size * np.prod(grown(begun, w, nu), axis=0).sum(), y[0], np.longdouble(1))
    along, w = grown(begun, w, nu)
    return (W + np.outer(unit, along - begun)) @ w


def convolution(x: Vector, y: Vector, first: Vector, second: Vector, _: Vector) -> Vector:
    """Of one datum each frequency is a pair, with half of the datum's phase in each of both parts."""
    d = len(first)
    modes, u, v = (np.fft.rfft(z) for z in (x[0], first, second))
    size = np.abs(modes)
    phase = np.where(size > 0, modes / np.where(size > 0, size, 1), 1)
    half = np.sqrt(phase)
    begun = u / half, np.conj(v) * half

    def coefficients(nu: np.longdouble) -> Vector:
        p, q = grown(*begun, nu * size)
        return np.fft.irfft(p * np.conj(q) * phase, d)

    return coefficients(root(lambda nu: x[0] @ coefficients(nu), y[0], size.max()))


def sensing(x: Vector, y: Vector, first: Vector, second: Vector, _: Vector) -> Vector:
    """Of one measurement each pair of singular vectors has a pair of rows and columns."""
    given = x[0].reshape(len(first), -1)
    left, size, right = singular(given)
    rows, columns = left.T @ first, (second @ right).T

    def matrix(nu: np.longdouble) -> Vector:
        p, q = grown(rows, columns, nu * size[:, None])
        return left @ p @ q.T @ right.T

    found = root(lambda nu: np.sum(given * matrix(nu)), y[0], size.max())
    return matrix(found).reshape(-1)


def singular(x: Vector) -> tuple[Vector, Vector, Vector]:
    """Singular vectors and values in extended precision, from those in double precision (Ogita and Aishima 2018)."""
    left, _, right = np.linalg.svd(x.astype(float))
    left, right = left.astype(x.dtype), right.T.astype(x.dtype)
    eye = np.eye(len(x))
    for _ in range(3):
        R, S, T = eye - left.T @ left, eye - right.T @ right, left.T @ x @ right
        size = np.diag(T) / (1 - (np.diag(R) + np.diag(S)) / 2)
        a, b = T + size * R, T + size * S
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = size[None, :] ** 2 - size[:, None] ** 2
            F = (size * a + size[:, None] * b.T) / gap
            G = (size[:, None] * a + size * b.T) / gap
        np.fill_diagonal(F, np.diag(R) / 2)
        np.fill_diagonal(G, np.diag(S) / 2)
        left, right = left + left @ F, right + right @ G
    return left, np.diag(left.T @ x @ right), right


def minimum(x: Vector, y: Vector, _: Vector, found: Vector, loss: str) -> Vector | None:
    """The minimum of a loss of margins over the span of the data, added to the part of the start outside of it."""
    rows = y[:, None] * x

    def step(w: Vector) -> tuple[Vector, Vector]:
        push = np.exp(-(rows @ w))
        push = push / (1 + push) if loss == "logistic" else push
        curve = push * (1 - push) if loss == "logistic" else push
        return -(rows.T @ push), (rows.T * curve) @ rows

    return newton(found, step)


def component(x: Vector, y: Vector, _: Vector, found: Vector) -> Vector | None:
    """The minimum of the data in the plane alone, in that plane."""
    flat = x[:, 2] == 0
    inside = minimum(x[flat][:, :2], y[flat], _, found[:2], "logistic")
    return None if inside is None else np.append(inside, np.longdouble(0))


def projection(x: Vector, y: Vector, start: Vector, _: Vector) -> Vector | None:
    """The solution of least squares that is nearest to the start."""
    if len(x) > x.shape[1]:
        return newton(start, lambda w: (x.T @ (x @ w - y), x.T @ x))
    dual = newton(np.zeros_like(y), lambda nu: (x @ (start + x.T @ nu) - y, x @ x.T))
    return None if dual is None else start + x.T @ dual


def neuron(x: Vector, y: Vector, _: Vector, found: Vector) -> Vector | None:
    """The stationary point of a neuron's squared error that is nearest to what was found."""

    def step(w: Vector) -> tuple[Vector, Vector]:
        out = np.tanh(x @ w)
        slope, miss = 1 - out**2, out - y
        return x.T @ (miss * slope), (x.T * (slope**2 - 2 * miss * out * slope)) @ x

    return newton(found, step)


def hinge(x: Vector, y: Vector, start: Vector, _: Vector) -> Vector:
    """Of orthogonal data each margin that is below one rises to it."""
    lacking = np.maximum(1 - y * (x @ start), 0) * y
    return start + (lacking / np.sum(x**2, axis=1)) @ x


def followed(x: Vector, y: Vector, *layers: Vector) -> Vector | None:
    """The end of a plain integration of a diagonal network, in double precision; its last digits by Newton's method
    along the flow's own way, which is straight there."""
    *given, _ = layers
    X, Y = x.astype(float), y.astype(float)
    start = np.stack(given).astype(float)

    def others(w: Vector) -> Vector:
        return np.stack([np.prod(np.delete(w, j, axis=0), axis=0) for j in range(len(w))])

    def velocity(_: float, state: Vector) -> Vector:
        w = state.reshape(start.shape)
        return ((Y - X @ np.prod(w, axis=0)) @ X * others(w)).reshape(-1)

    def arrived(_: float, state: Vector) -> float:
        return float(np.abs(X @ np.prod(state.reshape(start.shape), axis=0) - Y).max() - 1e-13)

    arrived.terminal = True  # type: ignore[attr-defined]
    path = solve_ivp(
        velocity, (0.0, 1e6), start.reshape(-1), method="DOP853", rtol=1e-13, atol=1e-16, events=arrived, max_step=1e5
    )
    return None if path.status != 1 else np.prod(path.y[:, -1].reshape(start.shape), axis=0).astype(np.longdouble)
