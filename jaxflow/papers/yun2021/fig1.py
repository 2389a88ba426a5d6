"""`reproduce yun2021 fig1`: regression trajectories in the plane, α = 0.01 and 1."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.yun2021.plane import SIZES, compute_plane
from jaxflow.papers.yun2021.plane_claims import plane_notes, regression_claims
from jaxflow.plots.linear_plane import draw_linear_plane

ALPHAS = (0.01, 1.0)


@register_figure(
    "yun2021",
    "fig1",
    title="Coefficients of three linear networks on a regression task, with the limit points of Theorem 5",
    run_times={
        "quick": "24 flows and 5,000 steps of gradient descent from each start, some seconds",
        "paper": "the same",
        "large": "the same",
    },
)
class Figure1(AbstractFigure):
    r"""Figure 1 of Yun et al. (2021): $\beta(\Theta)$ of fully connected, diagonal and convolutional networks, L = 2,
    on $(x,y)=([1\ 2],1)$."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute_plane("regression", ALPHAS, SIZES[scale].regression, say)

    def draw(self, data: Data) -> Any:
        return draw_linear_plane([(rf"regression, $\alpha={a:g}$", data, i) for i, a in enumerate(data["alphas"])])

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return regression_claims(data), plane_notes(data)
