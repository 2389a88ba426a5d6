"""`reproduce tarzanagh2023 fig8`: (Gen-SVM) against descent for a nonlinear head."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.composition import SIZES, compute
from jaxflow.papers.tarzanagh2023.composition_claims import figure8_claims
from jaxflow.plots import draw_composition
from jaxflow.report import Claim


@register_figure(
    "tarzanagh2023",
    "fig8",
    title="Attention that composes tokens for a nonlinear head, and (Gen-SVM)",
    run_times={
        "quick": "200 instances for each of d = 4, 8, under a minute",
        "paper": "10,000 instances for each of d = 4, 6, 8, 10, about four minutes",
        "large": "50,000 instances for each of d = 4, 6, 8, 10, about twenty minutes on two cores",
    },
)
class Figure8(AbstractFigure):
    r"""Figure 8 of Tarzanagh et al. (2023): n = 3, T = 4, head $1^\top\mathrm{ReLU}(Vx)$, some label −1.

    Upper: $1-\mathrm{corr}$ of the published descent on W with $W^{mm}$ of (Gen-SVM), with
    $W^{SVMeq}=W^{fin}+\gamma\bar W^{mm}$ and with $W^{1token}$ of (Att-SVM) for the top tokens. Lower: with
    $W^{SVMeq}$ at the end, against the largest softmax of a masked token. Means are over the instances that the
    paper's filter keeps; the titles say how many those are.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_composition(data)

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return figure8_claims(data)
