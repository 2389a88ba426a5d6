"""`reproduce yun2021 push`: does the direction of X^T r converge on random data, as Theorem 2 has to assume?"""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import good, linalg
from jaxflow.data import LinearData
from jaxflow.flow import LogArcLength, integrate
from jaxflow.flow.solvers import state_norm
from jaxflow.papers.drawing import dress, quantile_band
from jaxflow.papers.experiment import Dataset, Part, Rate, Statement, Table, common_rate, power_laws, register
from jaxflow.papers.yun2021.flows import classification, separable
from jaxflow.papers.yun2021.limit_directions import SIZES, network_of
from jaxflow.plots import CURVES, new_figure
from jaxflow.study import subkey
from jaxflow.theory import push_direction

TRIALS = {"quick": 3, "paper": 50, "large": 500}
NAMES = ("fully connected", "diagonal, L = 2", "diagonal, L = 3", "convolutional")
SAVES = 48
# ‖θ‖^L, beyond which multipliers are rounding noise.
LARGEST = 1e6
# Distances of directions that are rounding.
SAME = 1e-12


def follow(key: Any, setting: tuple[str, int, int]) -> Table:
    r"""The exact flow of one of `NAMES` on n points in d dimensions, and $X^\\top r$ along it.

    One flow at its m = `SAVES` points: `drift` `(m,)`, $1-\cos$ between $X^\top r$ there and at the end; `sizes`
    `(m,)`, $\log\|\beta\|$; and whether it got there, `ok`.
    """
    network, n, d = setting
    X, y = separable(subkey(key, "data"), n, d)
    model = network_of(network, subkey(key, "start"), LinearData(X, y), equal=False)
    end = float(np.log(LARGEST)) / model.degree
    path = integrate(
        classification(X, y),
        model,
        clock=LogArcLength(),
        until=end,
        save_at=jnp.linspace(-1.0, end, SAVES),
        # Multipliers see a relative error of the weights times the margins, 1e6: at rtol 1e-5 the curves of fully
        # connected networks rise again from log‖β‖ = 7 on.
        solver=diffrax.Kvaerno5(root_finder=linalg.newton(rtol=1e-8, atol=1e-10, norm=state_norm)),
        controller=diffrax.PIDController(rtol=1e-10, atol=1e-12, pcoeff=0.3, icoeff=0.4, norm=state_norm),
        max_steps=16384,
        throw=False,
    )
    pushes = jax.vmap(lambda p: push_direction(X, p))(path.points.multipliers)
    last = push_direction(X, path.final.multipliers)  # pyright: ignore[reportArgumentType]
    sizes = jax.vmap(lambda m: jnp.log(jnp.linalg.norm(m.linear_coefficients())))(path.points.model)
    return Table(drift=0.5 * jnp.sum((pushes - last[None]) ** 2, axis=1), sizes=sizes, ok=good(path.result))


PUSHES = Dataset(
    "yun2021",
    "push",
    {
        "paths": Part(
            follow, lambda scale: {name: (name, *SIZES[scale]) for name in NAMES}, TRIALS, block=25, way="in turn"
        )
    },
)


def converges(row: int) -> Statement[Table]:
    """Closer to the end at three quarters of the path than at half of it; one that turns away may come back, unless
    it turns by a right angle."""

    late, middle = (3 * SAVES) // 4, SAVES // 2

    def rate(paths: Table, known: np.ndarray) -> Rate | None:
        drift, sizes = paths.drift[known], paths.sizes[known]
        # Neither early, nor rounding, nor near the end, to which they are compared.
        use = (drift > 1e-14) & (sizes > 2.0) & (drift < 0.3) & (sizes < sizes[:, -1:] - 2.0)
        fitted, half = power_laws(sizes, drift, use, least=5)
        return common_rate(-fitted, None, half=half, law="1 − cos against ‖β‖")

    return Statement(
        source="Remark 1",
        says=f"X^T r converges in direction ({NAMES[row]}): assumed, not proved.",
        of=lambda n: n.paths.at(row),
        residual=lambda paths: np.where(paths.ok, paths.drift[:, late] - paths.drift[:, middle], np.nan),
        bound=(SAME, "1 − cos at three quarters of the path minus that at half"),
        rate=rate,
        late=1.0,
    )


def notes(numbers: Table) -> list[str]:
    """What the numbers can show, and who is missing."""
    missing = ", ".join(f"{name} {int(np.sum(~ok))}" for name, ok in zip(NAMES, numbers.paths.ok, strict=True))
    return [
        "Numbers can support a convergence and cannot prove it: the reference is the direction at the end of the "
        "path, and the last part of every curve is close to it by definition.",
        f"Data sets whose flow did not get there: {missing}.",
    ]


def draw(numbers: Table) -> Any:
    r"""$1-\cos$ between $X^\top r$ on the way and at the end: median, and 10% to 90%, over data sets."""
    figure, axes = new_figure(1, width=6.4, height=4.2)
    (axis,) = axes
    for row, (name, color, line) in enumerate(zip(NAMES, CURVES, ("-", "--", "-.", ":"), strict=True)):
        values, sizes = np.maximum(numbers.paths.drift[row], 1e-17), np.median(numbers.paths.sizes[row], axis=0)
        axis.plot(sizes, np.median(values, axis=0), line, color=color, label=name)
        quantile_band(axis, sizes, values, color)
    drift = r"$1-\cos(X^\top r,\ X^\top r\ \mathrm{at\ the\ end})$"
    dress(axis, x=r"$\log\|\beta\|$", y=drift, log="y", legend=9)
    return figure


register(
    PUSHES,
    title="Convergence of the direction of X^T r, the hypothesis of Theorem 2, on random data",
    statements=[converges(row) for row in range(len(NAMES))],
    notes=notes,
    draw=draw,
)
