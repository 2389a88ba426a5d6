"""Figure 2: where W converges as d grows."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.registry import AbstractFigure, register_figure
from jaxflow.papers.tarzanagh2023.percent import Data, Size, convergence_bars, run_studies
from jaxflow.papers.tarzanagh2023.percent_claims import convergence_claims, notes_of
from jaxflow.plots import draw_percentage_bars
from jaxflow.report import Claim
from jaxflow.study import TokenSelection

SIZES = {
    "quick": Size(trials=60, d=(2, 4, 10), parametrizations=("W",)),
    "paper": Size(trials=500, d=(2, 3, 4, 5, 6, 8, 10, 15, 20), parametrizations=("W",)),
    "large": Size(trials=100_000, d=(2, 3, 4, 5, 6, 8, 10, 15, 20), parametrizations=("W",)),
}


@register_figure(
    "tarzanagh2023",
    "fig2",
    title="Where W converges as d grows",
    run_times={
        "quick": "60 instances at 3 values of d, a minute",
        "paper": "500 instances at 9 values of d, some minutes, most of them compiling",
        "large": "100,000 instances at 9 values of d, hours",
    },
)
class Figure2(AbstractFigure):
    r"""Figure 2 of Tarzanagh et al. (2023): the bars of figure 5 (a), on the same instances, without the green ones.

    n = T = 5, everything uniform on the unit sphere, score gap 0.1 (App. F).
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return run_studies(TokenSelection(), SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_percentage_bars(convergence_bars(data))

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        claims = convergence_claims(
            data,
            "Figure 2",
            "Larger over-parameterization (d) increases the likelihood of global convergence.",
            None,
        )
        return claims, notes_of(data)
