r"""Parts (A) and (B) of a stage (Appendix C): the plateau at $\theta^k$, until new weights are of size ρ, and what
follows, until $\theta^{k+1}$ is near. In NumPy, for paths of any integrator; and linear networks by SciPy alone.
"""

from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import nnls

from jaxflow.papers.experiment import Table

# ρ of (26), and the distance that ends part (B): the paper's is ρ over 4p, times the accuracy in time.
RHO = 1e-2
NEAR = 1e-2 * RHO

NAMES = ("opens", "stays", "weight", "others", "exponent", "length", "factor")


def measure_parts(
    times: np.ndarray, log_sums: np.ndarray, log_conserved: np.ndarray, log_alpha: float, stages: Table
) -> dict[str, np.ndarray]:
    r"""Each of `NAMES`, stage by stage `(k,)`, NaN from where the path does not get near $\theta^k$.

    Part (A) ends at the rescaled time `opens`, $\underline t_{k+1}$ of (26): where weights off the support have moved
    by 4ρ. Up to there the largest distance from $\theta^k$ in units of ρ is `stays`, and weights other than those at
    $i_k$ move by `others` in units of the distance at the beginning. There $u_{i_k}/\rho$, with the sign that
    $v_{i_k}$ has relative to the one predicted, is `weight`, and `exponent` is the largest $|\log_\alpha w-b^{k+1}|$.
    Part (B) takes `length`, in the flow's own time, and changes $\log w$ by at most `factor`.

    **Arguments:** a path in rescaled `times` `(m,)`: $\log(u+v)$ `(m, p)`, $\log(u^2-v^2)$ `(p,)`; `stages`, of
    Algorithm 1: `coordinates` $i_k$ and `times` $T_{k+1}$ `(k,)`, `products` and `exponents` $b^{k+1}$ `(k, p)`.
    """
    large, small = np.exp(log_sums), np.exp(log_conserved - log_sums)
    u, v = 0.5 * (large + small), 0.5 * (large - small)
    found = {name: np.full(len(stages.times), np.nan) for name in NAMES}
    before, start, places = np.zeros(len(log_conserved)), 0, np.arange(len(times))
    for k, (i, after) in enumerate(zip(stages.coordinates, stages.products, strict=True)):
        off = before == 0.0
        moved_u, moved_v = np.abs(u - u[start])[:, off], np.abs(v - v[start])[:, off]
        moved = np.linalg.norm(moved_u, axis=1) + np.linalg.norm(moved_v, axis=1)
        at = next(iter(crossings(places[start:], moved[start:], 4.0 * RHO)), len(places))
        near = places[int(at) :][_distance(u, v, after)[int(at) :] <= NEAR]
        if len(near) == 0 or near[0] == int(at):
            break
        end = near[0]
        inside, there = slice(start, int(at) + 1), _between(log_sums, at)
        others = np.flatnonzero(off) != i
        found["opens"][k] = _between(times, at)
        found["stays"][k] = np.max(_distance(u, v, before)[inside]) / RHO
        found["others"][k] = max(np.max(one[inside][:, others], initial=0.0) for one in (moved_u, moved_v)) / NEAR
        own = there[i], log_conserved[i] - there[i]
        sign = np.sign(own[0] - own[1]) * np.sign(1.0 - stages.exponents[k, i])
        found["weight"][k] = sign * 0.5 * np.sum(np.exp(own)) / RHO
        found["exponent"][k] = np.max(np.abs(there / log_alpha - stages.exponents[k]))
        found["length"][k] = -log_alpha * (times[end] - found["opens"][k])
        found["factor"][k] = np.max(np.abs(log_sums[int(at) + 1 : end + 1] - there))
        before, start = after, end
    return found


def _distance(u: np.ndarray, v: np.ndarray, products: np.ndarray) -> np.ndarray:
    """From the weights of these products, of equal size; the signs of u are those of `C.3`, positive."""
    size = np.sqrt(np.abs(products))
    return np.sqrt(np.sum((u - size) ** 2 + (v - np.sign(products) * size) ** 2, axis=1))


def crossings(times: np.ndarray, values: np.ndarray, level: float) -> np.ndarray:
    """When values pass `level` away from zero, the logarithm of their size taken straight between readings."""
    size = np.log(np.maximum(values * np.sign(level), np.finfo(float).tiny)) - np.log(abs(level))
    steps = np.flatnonzero((size[:-1] < 0) & (size[1:] >= 0))
    share = -size[steps] / (size[steps + 1] - size[steps])
    return times[steps] + share * (times[steps + 1] - times[steps])


def _between(values: np.ndarray, at: float) -> Any:
    whole = int(at)
    return values[whole] + (at - whole) * (values[whole + 1] - values[whole])


def linear_stages(X: np.ndarray, y: np.ndarray, most: int) -> Table:
    r"""Algorithm 1 of a linear diagonal network on $\frac1{2n}\|Xa-y\|^2$, by SciPy's NNLS.

    A limit of the flow within one orthant is the minimum there. **Returns:** the stages of `measure_parts`, and the
    `slopes` $g(\theta^{k+1})$ `(k, p)`.
    """
    n, p = X.shape
    products, b, time = np.zeros(p), np.ones(p), 0.0
    rows: list[tuple[Any, ...]] = []
    g = X.T @ y / n
    while len(rows) < most:
        with np.errstate(divide="ignore", invalid="ignore"):
            waits = np.where(g == 0.0, np.inf, (b - 1.0 + np.sign(g)) / g)
        i = int(np.argmin(waits))
        if not np.isfinite(waits[i]):
            break
        signs = np.where(np.arange(p) == i, np.sign(g), np.sign(products))
        on = signs != 0.0
        b, time = b - g * waits[i], time + waits[i]
        b[on] = 1.0 - signs[on]
        products = np.zeros(p)
        products[on] = signs[on] * nnls(X[:, on] * signs[on], y)[0]
        g = np.where(products != 0.0, 0.0, X.T @ (y - X @ products) / n)
        rows.append((i, time, products, b, g))
    names = ("coordinates", "times", "products", "exponents", "slopes")
    return Table({name: np.asarray(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})


def linear_path(
    X: np.ndarray, y: np.ndarray, log_sum: np.ndarray, log_conserved: np.ndarray, log_alpha: float, until: float
) -> tuple[np.ndarray, np.ndarray]:
    """Rescaled times `(m,)` and log(u + v) `(m, p)` of the flow of the same network, by LSODA."""

    def field(s: float, omega: np.ndarray) -> np.ndarray:
        # What the solver tries beyond e^20 it rejects, but must not overflow.
        positive, negative = np.exp(np.minimum([2.0 * omega, 2.0 * (log_conserved - omega)], 40.0))
        products = 0.25 * (positive - negative)
        return -log_alpha * X.T @ (y - X @ products) / len(y)

    # Steps of a thousandth do not pass over a stage.
    path = solve_ivp(field, (0.0, until), log_sum, method="LSODA", rtol=1e-9, atol=1e-7, max_step=1e-3 * until)
    return path.t, path.y.T
