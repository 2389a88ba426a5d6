"""`reproduce yun2021 fig3`: regression for α = 0.5, classification for α = 0.01, 0.5 and 1."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.yun2021.plane import SIZES, compute_plane
from jaxflow.papers.yun2021.plane_claims import classification_claims, plane_notes, regression_claims
from jaxflow.plots.linear_plane import draw_linear_plane

ALPHAS = (0.01, 0.5, 1.0)


@register_figure(
    "yun2021",
    "fig3",
    title="Coefficients of three linear networks on a regression and on a classification task",
    run_times={
        "quick": "48 flows; 20,000 steps of gradient descent for classification, under a minute",
        "paper": "48 flows; 2,000,000 steps of gradient descent for classification, some minutes",
        "large": "the same",
    },
)
class Figure3(AbstractFigure):
    r"""Figure 3 of Yun et al. (2021). The classification data are $([1\ 2],+1)$ and $([0\ {-3}],-1)$, on which the
    convolutional network is degenerate: both margins of its limit direction are equal."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        size = SIZES[scale]
        data: Data = {}
        for task, alphas, steps in (
            ("regression", (0.5,), size.regression),
            ("classification", ALPHAS, size.classification),
        ):
            data |= {f"{task}.{name}": value for name, value in compute_plane(task, alphas, steps, say).items()}
        return data

    def draw(self, data: Data) -> Any:
        regression, classification = _part(data, "regression"), _part(data, "classification")
        panels = [(r"regression, $\alpha=0.5$", regression, 0)]
        panels += [
            (rf"classification, $\alpha={a:g}$", classification, i) for i, a in enumerate(classification["alphas"])
        ]
        return draw_linear_plane(panels)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        classification = _part(data, "classification")
        claims = regression_claims(_part(data, "regression")) + classification_claims(classification)
        return claims, [
            *plane_notes(classification),
            "Convolutional: both margins of the limit tie; the flow decides by the sign of the second coefficient, "
            "one datum dominates, and the direction converges like a power of the norm.",
        ]


def _part(data: Data, task: str) -> Data:
    return {name.removeprefix(f"{task}."): value for name, value in data.items() if name.startswith(f"{task}.")}
