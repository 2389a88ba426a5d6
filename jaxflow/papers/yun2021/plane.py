r"""`reproduce yun2021 fig1` and `fig3`: paths of linear coefficients in the plane, three networks.

Figures 1 and 3 of Yun et al. (2021): the flow, gradient descent, and the predicted limits. The classification data are
$([1\ 2],+1)$ and $([0\ {-3}],-1)$, on which the convolutional network is degenerate: both margins of its limit
direction are equal.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.flow import integrate
from jaxflow.gradient_descent import descend
from jaxflow.margin import max_margin, solve
from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Dataset, Part, Statement, Table, register
from jaxflow.papers.yun2021.closed_forms import point_limit
from jaxflow.papers.yun2021.flows import DIRECTIONS as CONTROLLER
from jaxflow.papers.yun2021.flows import classification, direction_distance, regression
from jaxflow.papers.yun2021.starts import DIRECTIONS, NETWORKS, directions, start_at
from jaxflow.plots import new_figure

# §6: one point for regression, two for classification.
X_REGRESSION, Y_REGRESSION = np.array([[1.0, 2.0]]), np.array([1.0])
X_CLASSIFICATION, Y_CLASSIFICATION = np.array([[1.0, 2.0], [0.0, -3.0]]), np.array([1.0, -1.0])
NORMS = {"fully connected": ("l2", None), "diagonal": ("l1", None), "convolutional": ("l1", "dft")}
# Learning rates of gradient descent, and its steps: the paper's 5,000 and 2,000,000 at its scale.
RATES = (1e-3, 5e-4)
REGRESSION_STEPS = 5_000
STEPS = {"quick": 20_000, "paper": 2_000_000, "large": 2_000_000}
SAVES = 200
# Arc length of the classification paths: ‖β‖ of 1e40, far beyond any picture.
FAR = 1e20
# Flow against closed form: integration at rtol 1e-8 (the tests hold it at 1e-10 with tighter steps).
FLOW = 1e-6
# Gradient descent has step size 1e-3: its end may be off by a multiple of that.
DESCENT = 1e-2
# The direction of the flow at the end of the path.
DIRECTION = 1e-8
# "About 1e-5", the loss at the end of the paper's descent: within a factor of ten.
LOSS = 1e-4
# Unit vectors at this distance depend on the start.
DEPENDS = 1e-2

# A network from starts of these sizes in directions `(4, 2)`, and the steps of gradient descent.
Setting = tuple[str, tuple[float, ...], int, Any]


def _each(one: Any, alphas: tuple[float, ...], directions: Any) -> Any:
    """`one` of every scale and direction."""
    inner = jax.vmap(one, in_axes=(None, 0))
    return jax.vmap(inner, in_axes=(0, None))(jnp.asarray(alphas), directions)


def _betas(models: Any) -> Any:
    return jax.vmap(lambda m: m.linear_coefficients())(models)


def _descend(risk: Any, start: Any, rate: float, steps: int) -> Any:
    """β at `SAVES` equally spaced steps of plain gradient descent."""
    save_at = jnp.arange(1, SAVES + 1) * (steps // SAVES)
    path = descend(risk, start, steps=steps, learning_rate=rate, normalised=False, save_at=save_at, throw=False)
    return _betas(path.points.model)  # pyright: ignore[reportOptionalMemberAccess]


def regress(key: Any, setting: Setting) -> Table:
    r"""From every start to interpolation.

    From each start at m save points of the `flow` and of `descent`, $\beta$ `(m, 2)`; the flow's `end`, the `limit` of
    Theorem 5 `(2,)`, and the `slack` of its condition on the start.
    """
    network, alphas, steps, directions = setting
    X, y = jnp.asarray(X_REGRESSION), jnp.asarray(Y_REGRESSION)
    risk = regression(X, y)

    def one(alpha: Any, z: Any) -> Table:
        start = start_at(network, X[0], z, alpha)
        predicted = point_limit(start, X[0], y[0])
        # From here to interpolation the loss falls by e^(-2 ‖x‖² ‖β‖ t): log t of 6 is far beyond for every α here.
        path: Any = integrate(
            risk, start, clock="log_time", until=6.0, save_at=jnp.linspace(-6.0, 6.0, SAVES), throw=False
        )
        end, descent = path.final.model.linear_coefficients(), _descend(risk, start, RATES[0], steps)
        return Table(
            flow=_betas(path.points.model),
            descent=descent,
            end=end,
            limit=predicted.coefficients,
            slack=predicted.slack,
        )

    return _each(one, alphas, directions)


def classify(key: Any, setting: Setting) -> Table:
    r"""From every start, far out.

    The paths as in `regress`; `off`: the distance of the flow's last unit vector from that of the `program` `(2,)`;
    `loss` at the end of the `descent`, which took `descent_steps`.
    """
    network, alphas, steps, directions = setting
    X, y = jnp.asarray(X_CLASSIFICATION), jnp.asarray(Y_CLASSIFICATION)
    risk = classification(X, y)
    program = max_margin(X, y, *NORMS[network])
    aim = program.coefficients(solve(program).primal)

    def one(alpha: Any, z: Any) -> Table:
        start = start_at(network, X[0], z, alpha)
        readings = jnp.concatenate([jnp.linspace(0.01, 6.0, SAVES - 40), jnp.geomspace(7.0, 1e3, 40)])
        common: Any = {"controller": CONTROLLER, "throw": False}
        path: Any = integrate(risk, start, clock="arc_length", until=1e3, save_at=readings, **common)
        far = integrate(risk, start, clock="log_arc_length", solver="Tsit5", until=float(np.log(FAR)), **common)
        end = far.final.model.linear_coefficients()
        descent = _descend(risk, start, RATES[1], steps)
        return Table(
            flow=_betas(path.points.model),
            descent=descent,
            program=aim,
            off=direction_distance(end, aim),
            loss=jnp.sum(jnp.exp(-y * (X @ descent[-1]))),
            descent_steps=jnp.asarray(steps),
        )

    return _each(one, alphas, directions)


ONCE = {"quick": 1, "paper": 1, "large": 1}
# Scales of figure 1; of figure 3, regression and classification.
SCALES_1, SCALES_3, SCALES_3C = (0.01, 1.0), (0.5,), (0.01, 0.5, 1.0)


def _settings(alphas: tuple[float, ...], steps: int) -> dict[str, Setting]:
    return {name: (name, alphas, steps, directions()) for name in NETWORKS}


def _regressions(alphas: tuple[float, ...]) -> Part:
    return Part(regress, lambda scale: _settings(alphas, REGRESSION_STEPS), ONCE, block=1)


# `regression`: of figure 1, over networks, scales and directions `(3, 1, 2, 4)`: one trial is all starts.
FIGURE_1 = Dataset("yun2021", "fig1", {"regression": _regressions(SCALES_1)})
# Of figure 3: `regression` `(3, 1, 1, 4)`, `classification` `(3, 1, 3, 4)`.
FIGURE_3 = Dataset(
    "yun2021",
    "fig3",
    {
        "regression": _regressions(SCALES_3),
        "classification": Part(classify, lambda scale: _settings(SCALES_3C, STEPS[scale]), ONCE, block=1),
    },
)


def _spread(points: np.ndarray) -> np.ndarray:
    """Largest distance between two directions' points `(networks, 1, α, z̄, 2)`: `(networks, α)`."""
    apart = points[:, 0, :, :, None] - points[:, 0, :, None]
    return np.linalg.norm(apart, axis=-1).max(axis=(2, 3))


def _unit(points: np.ndarray) -> np.ndarray:
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


POINT_5 = Statement[Any](
    source="Theorem 5",
    says="Theoretical predictions on limit points (the flow).",
    inside=lambda n: n.regression.slack > 0,
    residual=lambda n: (
        np.linalg.norm(n.regression.end - n.regression.limit, axis=-1) / np.linalg.norm(n.regression.limit, axis=-1)
    ),
    bound=(FLOW, "relative distance from the closed form"),
)
DESCENT_ENDS = Statement[Any](
    source="§6",
    says="The prediction of limit points is accurate for the solution found by GD (η = 1e-3, 5,000 steps).",
    residual=lambda n: np.linalg.norm(n.regression.descent[..., -1, :] - n.regression.limit, axis=-1),
    bound=(DESCENT, "distance"),
)
LESS_DEPENDENT = Statement[Table](
    source="§6",
    says="The solution is less dependent on initial directions when α is small.",
    # By network, 1 where the points of some α spread as far as those of a larger one.
    residual=lambda n: ~np.all(np.diff(_spread(n.regression.limit), axis=1) > 0, axis=1),
)
ALIGNS = Statement[Table](
    source="Theorem 2, Corollaries 1 to 3",
    says="The linear coefficients converge in direction to the l2, l1 and DFT-l1 max-margin solutions (the flow).",
    residual=lambda n: n.classification.off,
    bound=(DIRECTION, "distance of unit vectors"),
)
LOSS_REACHED = Statement[Table](
    source="§6",
    says="All experiments reached a loss of about 1e-5 at the end of gradient descent.",
    # A shorter run is another experiment.
    inside=lambda n: n.classification.descent_steps >= STEPS["paper"],
    residual=lambda n: n.classification.loss,
    bound=(LOSS, "loss"),
)

DEPENDENT = Statement[Table](
    source="§6",
    says="In contrast to the theory, the coefficients of gradient descent are quite dependent on initialization.",
    residual=lambda n: -_spread(_unit(n.classification.descent[..., -1, :])).max(axis=1),
    bound=(-DEPENDS, "minus the largest distance of two directions"),
)

# Halves of the window around the origin.
WINDOW = 1.5
# A line style each, for readers who see no difference of colours.
STYLES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."))


def draw_panel(axis: Any, paths: Any, row: int, alpha: float) -> None:
    r"""β from common starts: flows, ends of gradient descent, and limits; row `row` of the scales."""
    programs = getattr(paths, "program", None)
    for i, (network, (color, line)) in enumerate(zip(NETWORKS, STYLES, strict=True)):
        for j in range(DIRECTIONS):
            path = paths.flow[i, 0, row, j]
            axis.plot(*path[np.isfinite(path).all(axis=1)].T, line, color=color, linewidth=1.4)
            end = paths.descent[i, 0, row, j, -1]
            axis.plot(*end, marker="x", color=color, markersize=7, linestyle="none", zorder=4)
            if programs is None:
                ring = {"marker": "o", "markerfacecolor": "none", "markeredgecolor": color, "markersize": 10}
                axis.plot(*paths.limit[i, 0, row, j], zorder=5, **ring)
        if programs is not None:
            aim = _unit(programs[i, 0, 0, 0])
            axis.plot(*np.stack([0 * aim, 10 * aim]).T, color=color, linewidth=5, alpha=0.22, zorder=1)
        axis.plot([], [], line, color=color, label=network)
    axis.plot(*(alpha**2 * directions()).T, "o", color="black", markersize=4, zorder=6, label=r"$\alpha^2\bar z_j$")
    axis.plot([], [], "x", color="#555555", label="gradient descent, end")
    if programs is None:
        (x,), (y,) = X_REGRESSION, Y_REGRESSION
        first = np.array([-WINDOW, WINDOW])
        axis.plot(first, (y - x[0] * first) / x[1], color="#F0E442", linewidth=6, zorder=0, label=r"$x^\top\beta=y$")
        axis.plot([], [], "o", markerfacecolor="none", color="#555555", markersize=9, label="Theorem 5")
        dress(axis, rf"regression, $\alpha={alpha:g}$", xlim=(-1.0, 1.25), ylim=(-1.0, 1.25))
    else:
        size = 1.12 * float(np.max(np.abs(paths.descent[..., -1, :])))
        axis.plot([], [], color="#555555", linewidth=5, alpha=0.3, label="max-margin direction")
        window = (-0.35 * size, size)
        dress(axis, rf"classification, $\alpha={alpha:g}$", xlim=window, ylim=window)
    dress(axis, x=r"$[\beta]_1$", y=r"$[\beta]_2$", aspect="equal")


def _drawn(panels: list[tuple[Any, int, float]], explained: tuple[int, ...]) -> Any:
    """A legend in some panels: paths may pass where it would stand in the others."""
    figure, axes = new_figure(len(panels), width=4.5 * len(panels), height=4.5)
    for axis, panel in zip(axes, panels, strict=True):
        draw_panel(axis, *panel)
    for at in explained:
        axes[at].legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=7, loc="lower right")
    return figure


def _notes(numbers: Any) -> list[str]:
    z = "; ".join(f"({a:.3f}, {b:.3f})" for a, b in directions())
    return [
        f"The paper's random directions are not given; ours are {z}.",
        "Starts: the first layer is the larger one in every singular component (see jaxflow.papers.yun2021.starts).",
    ]


register(
    FIGURE_1,
    title="Coefficients of three linear networks on a regression task, with the limit points of Theorem 5",
    statements=[POINT_5, DESCENT_ENDS, LESS_DEPENDENT],
    notes=_notes,
    draw=lambda n: _drawn([(n.regression, row, alpha) for row, alpha in enumerate(SCALES_1)], (0,)),
)

register(
    FIGURE_3,
    title="Coefficients of three linear networks on a regression and on a classification task",
    statements=[POINT_5, DESCENT_ENDS, ALIGNS, LOSS_REACHED, DEPENDENT],
    notes=lambda n: [
        *_notes(n),
        "Convolutional: both margins of the limit tie; the flow decides by the sign of the second coefficient, one "
        "datum dominates, and the direction converges like a power of the norm.",
    ],
    draw=lambda n: _drawn(
        [(n.regression, 0, SCALES_3[0]), *((n.classification, row, alpha) for row, alpha in enumerate(SCALES_3C))],
        (0, 1),
    ),
)
