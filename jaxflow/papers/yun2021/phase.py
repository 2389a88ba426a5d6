"""`reproduce yun2021 phase-diagram`: how far the direction is from its limit, over final loss and scale α."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxflow.flow import integrate
from jaxflow.margin import max_margin, solve
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.yun2021.plane import NORMS, X_CLASSIFICATION, Y_CLASSIFICATION, directions
from jaxflow.papers.yun2021.starts import NETWORKS, start_at
from jaxflow.papers.yun2021.verify.shared import DIRECTIONS, classification, fit
from jaxflow.plots.linear_curves import draw_phase
from jaxflow.report import Claim, common_rate, count_evidence

# Scales α, and save points of each path.
SIZES = {"quick": (9, 60), "paper": (41, 200), "large": (81, 400)}
# Losses from 1 to 1e-10,000: natural logarithms.
LOG_LOSSES = np.log(10.0) * -np.concatenate([np.linspace(0, 20, 81), np.linspace(21, 100, 80)])
# Arc length of the end: the loss is e^(−ℓ²/const), far below the last of the above.
FAR = 1e3
# Unit vectors at this distance depend on the start.
DEPENDS = 0.05


@register_figure(
    "yun2021",
    "phase-diagram",
    title="Distance of the direction from its limit over the loss at which training ends and the scale of the start",
    run_times={
        "quick": "27 flows, half a minute",
        "paper": "123 flows, a minute",
        "large": "243 flows, some minutes",
    },
)
class PhaseDiagram(AbstractFigure):
    r"""The paper's classification data; its future work: what iterates after finitely many steps have seen."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        count, saves = SIZES[scale]
        alphas = jnp.geomspace(1e-3, 10.0, count)
        X, y = jnp.asarray(X_CLASSIFICATION), jnp.asarray(Y_CLASSIFICATION)
        z = jnp.asarray(directions()[0])
        errors = []
        for network in NETWORKS:
            say(f"{network}: {count} scales")
            program = max_margin(X, y, *NORMS[network])
            aim = program.coefficients(solve(program).primal)
            logs, off = jax.jit(jax.vmap(lambda a, name=network, aim=aim: _path(name, X, y, z, a, aim, saves)))(alphas)
            errors.append([np.interp(-LOG_LOSSES, -loss, error) for loss, error in zip(logs, off, strict=True)])
        return {"alphas": np.asarray(alphas), "log_losses": LOG_LOSSES, "error": np.asarray(errors)}

    def draw(self, data: Data) -> Any:
        return draw_phase(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        at = int(np.argmin(np.abs(data["log_losses"] - np.log(1e-5))))
        middle = int(np.argmin(np.abs(np.log(data["alphas"]))))
        here, end = data["error"][:, :, at], data["error"][:, :, -1]
        exponents = np.asarray([_exponent(data["log_losses"], one) for row in data["error"] for one in row])
        # Directions that still differ at the end, where training has stopped at 1e-100, leave open why they differ.
        settled = end <= DEPENDS
        evidence = count_evidence(
            settled & (here.max() > DEPENDS),
            decided=settled | (end > here),
            limit=True,
            rate=common_rate(exponents, None, law="distance of directions against log(1/loss)"),
        )
        parts = [
            f"{network} {row[0]:.1e} (α = {data['alphas'][0]:g}), "
            f"{row[middle]:.1e} (α = {data['alphas'][middle]:.2g}), "
            f"{row[-1]:.1e} (α = {data['alphas'][-1]:g})"
            for network, row in zip(NETWORKS, here, strict=True)
        ]
        return [
            Claim(
                "§6",
                "Coefficients depend on initialization because training stops far from zero loss (1e-5).",
                f"distance of directions at a loss of 1e-5: {'; '.join(parts)}; at 1e-100: {end.max():.1e} at most, "
                f"below {DEPENDS:g} in {int(settled.sum())} of {settled.size} flows",
                evidence,
                {"at_1e-5": float(here.max()), "at_the_end": float(end.max())},
            )
        ], ["The start is α² times the first direction of figures 1 and 3, continuous flow."]


def _exponent(log_losses: np.ndarray, errors: np.ndarray) -> float:
    """How the distance falls with log(1/loss) between 1e-5 and 1e-100; NaN where it is rounding."""
    use = (log_losses <= np.log(1e-5)) & (errors > 1e-12)
    return -fit(np.log(-log_losses[use]), np.log(errors[use]))[0]


def _path(name: str, X: Any, y: Any, z: Any, alpha: Any, aim: Any, saves: int) -> tuple[Any, Any]:
    risk = classification(X, y)
    start = start_at(name, X[0], z, alpha)
    readings = jnp.concatenate([jnp.linspace(0.02, 8.0, saves // 2), jnp.geomspace(8.5, FAR, saves - saves // 2)])
    path = integrate(risk, start, clock="arc_length", controller=DIRECTIONS, until=FAR, save_at=readings, throw=False)

    def look(model: Any) -> tuple[Any, Any]:
        beta = model.linear_coefficients()
        outputs = risk.source.outputs(model)
        log_loss = jax.nn.logsumexp(-y * outputs)
        return log_loss, jnp.linalg.norm(beta / jnp.linalg.norm(beta) - aim / jnp.linalg.norm(aim))

    return jax.vmap(look)(path.points.model)
