r"""Loss-rate bounds of the proofs (D.1, E.1, (62), (73), H.1), and the factor that the first two lack.

From $\dot{\mathcal L}\le-c\mathcal L^2$ follows $\mathcal L(t)\le\mathcal L(0)/(1+\mathcal L(0)\,ct)$; the displays of
D.1 and E.1 lack the factor $\mathcal L(0)$ in the denominator.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact
from scipy.integrate import solve_ivp

from jaxflow._core import good, linalg
from jaxflow.data import LinearData
from jaxflow.flow import integrate
from jaxflow.margin import max_margin, solve
from jaxflow.models import DeepLinearNetwork, DiagonalLinearNetwork, LinearConvolutionalNetwork
from jaxflow.papers.experiment import Again, Dataset, Draw, Part, Statement, Table, register
from jaxflow.papers.independent import RTOL, least_norm
from jaxflow.papers.yun2021.flows import classification, normal_data, regression, separable
from jaxflow.study import subkey
from jaxflow.theory import fully_connected_start, layer_gap
from jaxflow.theory.pairs import data_singular

TRIALS = {"quick": 10, "paper": 500, "large": 5000}
N, D = 2, 3
TIMES = np.linspace(0.05, 4.0, 40)
# Of the bound of E.1, in units of its own rate.
NEAR = np.geomspace(1e-3, 1.0, 40)
# Loss over bound: integration at rtol 1e-8 keeps it below one by more than this.
ABOVE = 1e-6
REGRESSIONS = ("diagonal", "fully connected")


def classification_rate(
    gap: Float[Array, ""], transform: Inexact[Array, "m d"], margin: Float[Array, ""], depth: int
) -> Float[Array, ""]:
    r"""$c=\alpha^{2L-2}\lambda^{L-1}s_{\min}(S)^2\gamma^2$ of D.1.

    **Arguments:** `gap`: $\alpha^2\lambda$ (see `layer_gap`); `margin`: γ, the largest margin of a unit vector. E.1 is
    the case L = 2 with $s_{\min}(S)^2\gamma^2$ replaced by $\|s\|_2^2$: S = s as a column and γ = 1.
    """
    return gap ** (depth - 1) * jnp.min(linalg.singular_values(transform)) ** 2 * margin**2


def regression_rate(
    gap: Float[Array, ""], transform: Inexact[Array, "m d"], inputs: Float[Array, "n d"], depth: int
) -> Float[Array, ""]:
    r"""$2\alpha^{2L-2}\lambda^{L-1}s_{\min}(S)^2s_{\min}(X)^2$ of (62); (73) with S = s as a column and X = 1.

    H.1 has the same with S = I and without the 2, a weaker bound.
    """
    least = jnp.min(linalg.singular_values(transform))
    smallest = jnp.min(linalg.singular_values(inputs))
    return 2.0 * gap ** (depth - 1) * least**2 * smallest**2


def algebraic_bound(start: Float[Array, ""], rate: Float[Array, ""], times: Float[Array, " t"]) -> Float[Array, " t"]:
    r"""$\mathcal L(0)/(1+\mathcal L(0)ct)$."""
    return start / (1.0 + start * rate * times)


def printed_bound(start: Float[Array, ""], rate: Float[Array, ""], times: Float[Array, " t"]) -> Float[Array, " t"]:
    r"""$\mathcal L(0)/(1+ct)$, as D.1 and E.1 have it: too small where $\mathcal L(0)<1$."""
    return start / (1.0 + rate * times)


def exponential_bound(start: Float[Array, ""], rate: Float[Array, ""], times: Float[Array, " t"]) -> Float[Array, " t"]:
    r"""$\mathcal L(0)e^{-ct}$."""
    return start * jnp.exp(-rate * times)


def _first(key: Any) -> Any:
    return 3.0 + jax.random.uniform(subkey(key, "start"), (D,))


def classify(key: Any, setting: None) -> Table:
    """A start that has most of its margin already, so that L(0) < 1 and the bound is close to the loss.

    The largest ratio of loss to bound on the way, to the `corrected` one and to the `printed` one; the loss at the
    `start`, λ as `gap`, whether it was followed.
    """
    X, y = separable(subkey(key, "data"), N, D)
    aim = solve(max_margin(X, y)).primal
    first = _first(key)
    risk = classification(X, y)
    start = DiagonalLinearNetwork((first, 2.0 * aim / first))
    gap = layer_gap(start.layers)
    rate = classification_rate(gap, jnp.eye(D), 1.0 / jnp.linalg.norm(aim), 2)
    return _held(risk, start, gap, rate, jnp.asarray(TIMES))


def regress(key: Any, network: str) -> Table:
    """Squared loss: a diagonal network of three layers, or a fully connected one of two.

    The largest ratio of loss to bound on the way, λ as `gap`, whether it was followed.
    """
    X, y = normal_data(subkey(key, "data"), N, D)
    data, start_key = LinearData(X, y), subkey(key, "start")
    if network == "diagonal":
        start: Any = DiagonalLinearNetwork.init(start_key, data, depth=3, scheme="zero_last")
        gap = layer_gap(start.layers)
        rate = regression_rate(gap, jnp.eye(D), X, 3)
    else:
        start = DeepLinearNetwork.init(start_key, data, scheme="zero_last")
        gap = fully_connected_start(start)[1].slack
        rate = 0.5 * regression_rate(jnp.maximum(gap, 0.0), jnp.eye(D), X, 2)
    risk = regression(X, y)
    losses, ok = _losses(risk, start, jnp.asarray(TIMES))
    return Table(ratio=jnp.max(losses / exponential_bound(risk(start), rate, jnp.asarray(TIMES))), gap=gap, ok=ok)


def datum(key: Any, setting: None) -> Table:
    r"""One data point and a convolutional network of two layers with $[U_2^\top v_2]_j=\frac y2[U_1^\top v_1]_j$.

    Columns of `classify`, with the bound of E.1; the `layers` of the start `(2, d)` and $\mathsf M(x)$ times y,
    `matrix` `(d, d)`.
    """
    x, y = jax.random.normal(subkey(key, "x"), (D,)), jax.random.rademacher(subkey(key, "y"), ()).astype(float)
    first = _first(key) / 2.0
    tensor, found = data_singular(LinearConvolutionalNetwork((first, first)), x)
    second = 0.5 * y * found.right @ (found.left.T @ first)
    start, risk = LinearConvolutionalNetwork((first, second)), classification(x[None], y[None])
    gap = jnp.min((found.left.T @ first) ** 2 - (found.right.T @ second) ** 2)
    rate = classification_rate(gap, found.values[:, None], jnp.ones(()), 2)
    times = jnp.asarray(NEAR) / rate
    held = _held(risk, start, gap, rate, times)
    return Table(held.named, layers=jnp.stack([first, second]), matrix=y * tensor.at(x))


def stuck(key: Any, setting: None) -> Table:
    """A diagonal network from $v_2=-y\\,\\mathrm{sign}(x)\\odot v_1$, whose λ is zero, on one data point.

    `loss` at the last of the times, λ at the start as `gap`, and whether the flow was followed.
    """
    x, y = jax.random.normal(subkey(key, "x"), (D,)), jax.random.rademacher(subkey(key, "y"), ()).astype(float)
    first = _first(key) / 4.0
    start = DiagonalLinearNetwork((first, -y * jnp.sign(x) * first))
    losses, ok = _losses(classification(x[None], y[None]), start, jnp.asarray(TIMES))
    return Table(loss=losses[-1], gap=layer_gap(start.layers), ok=ok)


def _held(risk: Any, start: Any, gap: Any, rate: Any, times: Any) -> Table:
    """Columns of `classify`."""
    (losses, ok), loss = _losses(risk, start, times), risk(start)
    return Table(
        corrected=jnp.max(losses / algebraic_bound(loss, rate, times)),
        printed=jnp.max(losses / printed_bound(loss, rate, times)),
        start=loss,
        gap=gap,
        ok=ok,
    )


def _losses(risk: Any, start: Any, times: Any) -> tuple[Any, Any]:
    path = integrate(risk, start, clock="physical_time", until=times[-1], save_at=times, throw=False)
    return jax.vmap(risk)(path.points.model), good(path.result)


BOUNDS = Dataset(
    "yun2021",
    "bounds",
    {
        "separable": Part(classify, {"diagonal": None}, TRIALS, block=50, way="in turn"),
        "squared": Part(regress, {name: name for name in REGRESSIONS}, TRIALS, block=50, way="in turn"),
        "datum": Part(datum, {"convolutional": None}, TRIALS, block=50, way="in turn"),
        "stuck": Part(stuck, {"diagonal": None}, TRIALS, block=50, way="in turn"),
    },
)


def over_printed(matrices: np.ndarray, start: np.ndarray, rate: float, times: np.ndarray) -> float:
    r"""The largest loss over `printed_bound`, less one, of two layers u, v with the loss $\sum_i e^{-u^\top M_iv}$, by
    DOP853 of SciPy."""

    def losses(layers: np.ndarray) -> np.ndarray:
        return np.exp(-np.einsum("jt,ijk,kt->it", layers[0], matrices, layers[1]))

    def velocity(t: float, flat: np.ndarray) -> np.ndarray:
        u, v = layers = flat.reshape(2, D)
        pull = np.einsum("i,ijk->jk", losses(layers[..., None])[:, 0], matrices)
        return np.concatenate([pull @ v, pull.T @ u])

    how: Any = {"method": "DOP853", "t_eval": times, "rtol": RTOL, "atol": 1e-2 * RTOL}
    path = solve_ivp(velocity, (0.0, times[-1]), start.ravel(), **how).y.reshape(2, D, -1)
    values, initial = losses(path).sum(axis=0), losses(start[..., None]).sum()
    return float(np.max(values * (1.0 + rate * times) / initial)) - 1.0


def _printed_again(held: Table, draw: Draw, at: tuple[int, ...]) -> float:
    key, _ = draw.instance("separable", at[1])
    X, y = (np.asarray(x) for x in separable(subkey(key, "data"), N, D))
    rows = y[:, None] * X
    aim = least_norm(rows)
    if aim is None:
        return np.nan
    first = np.asarray(_first(key))
    rate = held.gap[at] / np.sum(aim**2)
    return over_printed(rows[:, None] * np.eye(D), np.stack([first, 2.0 * aim / first]), rate, TIMES)


def _datum_again(held: Table, draw: Draw, at: tuple[int, ...]) -> float:
    found = held.at(at)
    rate = found.gap * np.sum(found.matrix**2)
    return over_printed(found.matrix[None], found.layers, rate, NEAR / rate)


def bounded(
    of: Callable[[Table], Table], column: str, source: str, says: str, again: Again[Table] | None = None
) -> Statement[Table]:
    """That a loss stays below a bound where λ > 0; below one that is `printed`, from starts with L(0) < 1."""
    return Statement(
        source=source,
        says=says,
        of=of,
        inside=lambda part: (part.gap > 0) & (part.start < 1.0 if column == "printed" else True),
        residual=lambda part: np.where(part.ok, getattr(part, column) - 1.0, np.nan),
        bound=(ABOVE, "loss/bound − 1"),
        again=again,
    )


NECESSARY = Statement[Table](
    source="Remark 2",
    says="some conditions on the start are necessary: from λ = 0, v_2 = −y sign(x) ⊙ v_1, the loss of one data point "
    "stays above one",
    inside=lambda n: n.stuck.gap <= 0,
    residual=lambda n: np.where(n.stuck.ok, 1.0 - n.stuck.loss, np.nan),
    bound=(0.0, "1 − L at the end; at most 0"),
)

register(
    BOUNDS,
    title="the bounds of D.1, E.1, (62), (73) and H.1",
    statements=[
        bounded(
            lambda n: n.separable,
            "corrected",
            "Bound of D.1",
            "L(t) ≤ L(0)/(1 + L(0) α^{2L−2} λ^{L−1} s_min(S)² γ² t): with L(0) restored, diagonal, L = 2",
        ),
        bounded(
            lambda n: n.separable,
            "printed",
            "Bound of D.1",
            "the same without L(0) in the denominator, as printed (E.1 likewise), from starts with L(0) < 1",
            Again("DOP853 and NNLS of SciPy", _printed_again, ABOVE),
        ),
        bounded(
            lambda n: n.squared.at(0),
            "ratio",
            "Bound (62)",
            "L(t) ≤ L(0) exp(−2 α^{2L−2} λ^{L−1} s_min(S)² s_min(X)² t), diagonal, L = 3, squared loss",
        ),
        bounded(
            lambda n: n.squared.at(1),
            "ratio",
            "Bound of H.1",
            "L(t) ≤ L(0) exp(−α^{2L−2} λ^{L−1} σ_min(X)² t), fully connected, L = 2, squared loss",
        ),
        bounded(
            lambda n: n.datum,
            "corrected",
            "Bound of E.1",
            "L(t) ≤ L(0)/(1 + L(0) α²λ ‖s‖² t): with L(0) restored, one data point, convolutional, L = 2",
        ),
        bounded(
            lambda n: n.datum,
            "printed",
            "Bound of E.1",
            "without L(0) in the denominator, as printed, from starts with L(0) < 1",
            Again("DOP853 of SciPy", _datum_again, ABOVE),
        ),
        NECESSARY,
    ],
)
