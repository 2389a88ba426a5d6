"""`reproduce yun2021 phase-diagram`: how far the direction is from its limit, over final loss and scale α."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.flow import integrate
from jaxflow.margin import max_margin, solve
from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Dataset, Rate, Statement, Sweep, Table, common_rate, power_laws, register
from jaxflow.papers.yun2021.flows import DIRECTIONS, classification, direction_distance
from jaxflow.papers.yun2021.plane import NORMS, X_CLASSIFICATION, Y_CLASSIFICATION
from jaxflow.papers.yun2021.starts import NETWORKS, directions, start_at
from jaxflow.plots import new_figure

# Scales α, and save points of each path.
SIZES = {"quick": (9, 60), "paper": (41, 200), "large": (81, 400)}
# Losses from 1 to 1e-10,000: natural logarithms.
LOG_LOSSES = np.log(10.0) * -np.concatenate([np.linspace(0, 20, 81), np.linspace(21, 100, 80)])
# The loss at which training stops in the paper.
STOPPED = int(np.argmin(np.abs(LOG_LOSSES - np.log(1e-5))))
# Arc length of the end: the loss is e^(−ℓ²/const), far below the last of the above.
FAR = 1e3
# Unit vectors at this distance depend on the start.
DEPENDS = 0.05


def sweep(scale: str, key: Any) -> Table:
    """The paper's future work: what iterates after finitely many steps have seen.

    Scales `alphas` `(a,)`, and the distance of the direction from its limit for each of `NETWORKS`, scale and loss of
    `LOG_LOSSES`, `error` `(3, a, l)`.
    """
    count, saves = SIZES[scale]
    alphas = jnp.geomspace(1e-3, 10.0, count)
    X, y = jnp.asarray(X_CLASSIFICATION), jnp.asarray(Y_CLASSIFICATION)
    z = jnp.asarray(directions()[0])
    errors = []
    for network in NETWORKS:
        program = max_margin(X, y, *NORMS[network])
        aim = program.coefficients(solve(program).primal)
        logs, off = jax.jit(jax.vmap(lambda a, name=network, aim=aim: _path(name, X, y, z, a, aim, saves)))(alphas)
        errors.append([np.interp(-LOG_LOSSES, -loss, error) for loss, error in zip(logs, off, strict=True)])
    return Table(alphas=np.asarray(alphas), error=np.asarray(errors))


def _path(name: str, X: Any, y: Any, z: Any, alpha: Any, aim: Any, saves: int) -> tuple[Any, Any]:
    risk = classification(X, y)
    start = start_at(name, X[0], z, alpha)
    readings = jnp.concatenate([jnp.linspace(0.02, 8.0, saves // 2), jnp.geomspace(8.5, FAR, saves - saves // 2)])
    path = integrate(risk, start, clock="arc_length", controller=DIRECTIONS, until=FAR, save_at=readings, throw=False)

    def look(model: Any) -> tuple[Any, Any]:
        log_loss = jax.nn.logsumexp(-y * risk.source.outputs(model))
        return log_loss, direction_distance(model.linear_coefficients(), aim)

    return jax.vmap(look)(path.points.model)


# `diagram`: on the paper's classification data.
PHASE = Dataset("yun2021", "phase-diagram", {"diagram": Sweep(sweep)})


def _residual(numbers: Table) -> np.ndarray:
    """The distance at the end; infinity where it has grown since training stopped, or where none depended on the start.

    Directions that still differ at the end, where the loss is 1e-100, leave open why they differ.
    """
    here, end = numbers.diagram.error[..., STOPPED], numbers.diagram.error[..., -1]
    return np.where((end <= DEPENDS) & (here.max() <= DEPENDS) | (end > DEPENDS) & (end > here), np.inf, end)


def _rate(numbers: Table, known: np.ndarray) -> Rate | None:
    """How the distances fall with log(1/loss) between 1e-5 and 1e-100; none where they are rounding."""
    late = LOG_LOSSES <= np.log(1e-5)
    errors = numbers.diagram.error.reshape(-1, LOG_LOSSES.size)[:, late]
    fitted, half = power_laws(-np.log(-LOG_LOSSES[late]), errors, errors > 1e-12)
    return common_rate(fitted, None, half=half, law="distance of directions against log(1/loss)")


STOPPING = Statement[Table](
    source="§6",
    says="Coefficients depend on initialization because training stops far from zero loss (1e-5).",
    residual=_residual,
    bound=(DEPENDS, "distance of directions at a loss of 1e-100"),
    rate=_rate,
    # The largest distance of unit vectors: `_residual` says where a finite one contradicts.
    late=2.0,
)


def draw(numbers: Table) -> Any:
    r"""Distance of β's direction from its limit, over the loss at which training ends and the scale α."""
    from matplotlib.colors import LogNorm

    figure, axes = new_figure(3, width=13.0, height=3.9, shared=True)
    image, decades = None, LOG_LOSSES / np.log(10.0)
    for axis, network, error in zip(axes, NETWORKS, numbers.diagram.error, strict=True):
        where = (decades, numbers.diagram.alphas, error)
        image = axis.pcolormesh(*where, norm=LogNorm(1e-3, 2.0), cmap="cividis", shading="nearest")
        lines = axis.contour(*where, levels=[0.01, 0.1, 0.5], colors="white", linewidths=0.8)
        axis.clabel(lines, fontsize=7)
        axis.axvline(-5.0, color="white", linestyle=":", linewidth=1.2)
        axis.grid(False)
        axis.invert_xaxis()
        dress(axis, network, r"$\log_{10}$ of the final loss (dotted: the paper's)", log="y")
    axes[0].set_ylabel(r"initial scale $\alpha$")
    figure.colorbar(image, ax=list(axes), label=r"$\|\beta/\|\beta\|-\beta^\infty\|$")
    return figure


register(
    PHASE,
    title="Distance of the direction from its limit over the loss at which training ends and the scale of the start",
    statements=[STOPPING],
    notes=lambda n: ["The start is α² times the first direction of figures 1 and 3, continuous flow."],
    draw=draw,
)
