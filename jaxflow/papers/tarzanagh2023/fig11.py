r"""`reproduce tarzanagh2023 fig11`: $W^{SVMeq}$ against descent by dimension and by threshold."""

from typing import Any

import numpy as np

from jaxflow.papers.drawing import dress
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Mask, Statement
from jaxflow.papers.table import Table
from jaxflow.papers.tarzanagh2023.composed_instances import kept
from jaxflow.papers.tarzanagh2023.composition import COMPOSITION, LIMIT
from jaxflow.papers.tarzanagh2023.fig8 import (
    LARGE_D,
    ROUNDING,
    TOO_FEW,
    improves,
    mean_error,
    near,
    unconditional,
)
from jaxflow.plots import CURVES, new_figure

SMALL_GAMMA = 1e-9
# "Γ from 1e-16 to 1e-6": the grid is ours.
EXPONENTS = np.arange(-16.0, -5.75, 0.5)


def by_threshold(numbers: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """1 − corr of kept instances whose masked tokens all have softmax below Γ, for each d and Γ `(k, g)`.

    **Returns:** the mean, NaN of none; its standard error, NaN of fewer than two; how many.
    """
    found = numbers.instances
    below = kept(found)[..., None] & (found.log_masked[..., None] < EXPONENTS)
    rows = zip(found.svmeq[..., -1], below, strict=True)
    cells = np.array([[mean_error(distance[at]) for at in row.T] for distance, row in rows])
    return cells[..., 0], cells[..., 1], below.sum(axis=1)


def _above(where: str, these: Any) -> Statement[Table]:
    """At the pairs (d, Γ) of which `these(d, Γ)` is true."""

    def inside(numbers: Table) -> Mask:
        return these(numbers.grid.dimensions[:, None], 10.0 ** EXPONENTS[None]) & (by_threshold(numbers)[2] > 0)

    return Statement(
        source="App. F, Figure 11",
        says=f"For d >= 8 or Γ <= 1e-9, the GD solution W achieves a correlation of > 0.99 with W^SVMeq. ({where})",
        inside=inside,
        residual=lambda n: near(*by_threshold(n)[:2]),
        bound=LIMIT,
    )


def draw_thresholds(numbers: Table) -> Any:
    r"""Figure 11 of Tarzanagh et al. (2023), from the instances of figure 8.

    (a) the mean of $1-\mathrm{corr}(W,W^{SVMeq})$ along the descent for each d; (b) at its end, over the instances
    whose masked tokens all have softmax below Γ; (c), which is not in the paper, how many of all those are.
    """
    (below, _, count), found = by_threshold(numbers), numbers.instances
    figure, axes = new_figure(3)
    gamma = 10.0**EXPONENTS
    for row, (color, d) in enumerate(zip(CURVES, numbers.grid.dimensions, strict=False)):
        style: Any = {"color": color, "label": rf"$d={d}$"}
        curves = found.svmeq[row][kept(found)[row]]
        mean = curves.mean(axis=0) if len(curves) else np.full(len(numbers.grid.steps), np.nan)
        axes[0].plot(numbers.grid.steps, np.maximum(mean, ROUNDING), **style)
        axes[1].plot(gamma, np.maximum(below[row], ROUNDING), ".-", **style)
        axes[2].plot(gamma, 100 * count[row] / found.fate.shape[1], ".-", **style)
    # The paper's 0.99.
    for axis in axes[:2]:
        axis.axhline(0.01, color="#000000", linewidth=0.8, linestyle=(0, (1, 2)))
    mean = r"mean of $1-\mathrm{corr}(W,\,W^{\mathrm{SVMeq}})$"
    dress(axes[0], "(a) kept instances", "iterations", mean, log="y", legend=8)
    dress(axes[1], r"(b) kept, masked softmax $<\Gamma$", r"$\Gamma$", mean, log="xy")
    dress(axes[2], "(c) how many these are", r"$\Gamma$", "% of all instances", log="x", ylim=(0, None))
    return figure


register(
    COMPOSITION,
    "fig11",
    title="The SVM-equivalence of figure 8 by dimension and by the threshold of masked tokens",
    statements=[
        improves("App. F, Figure 11"),
        _above("d >= 8, every Γ", lambda d, gamma: (d >= LARGE_D) & (gamma > 0)),
        # A threshold of the grid is its decimal power to rounding.
        _above("Γ <= 1e-9, every d", lambda d, gamma: (d > 0) & (gamma <= SMALL_GAMMA * (1 + 1e-9))),
    ],
    notes=lambda n: [*unconditional(n), TOO_FEW],
    draw=draw_thresholds,
)
