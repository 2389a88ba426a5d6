r"""`reproduce tarzanagh2023 fig11`: $W^{SVMeq}$ against descent by dimension and by threshold."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.tarzanagh2023.composition import SIZES, compute
from jaxflow.papers.tarzanagh2023.composition_claims import EXPONENTS, by_threshold, figure11_claims
from jaxflow.plots import draw_thresholds
from jaxflow.report import Claim


@register_figure(
    "tarzanagh2023",
    "fig11",
    title="The SVM-equivalence of figure 8 by dimension and by the threshold of masked tokens",
    run_times={
        "quick": "200 instances for each of d = 4, 8, under a minute",
        "paper": "10,000 instances for each of d = 4, 6, 8, 10, about four minutes",
        "large": "50,000 instances for each of d = 4, 6, 8, 10, about twenty minutes on two cores",
    },
)
class Figure11(AbstractFigure):
    r"""Figure 11 of Tarzanagh et al. (2023), from the instances of figure 8.

    (a) the mean of $1-\mathrm{corr}(W,W^{SVMeq})$ along the descent for each d; (b) at its end, over the instances
    whose masked tokens all have softmax below Γ; (c), which is not in the paper, how many of all those are.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(SIZES[scale], seed, say)

    def draw(self, data: Data) -> Any:
        return draw_thresholds(curves(data))

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return figure11_claims(data)


def curves(data: Data) -> Data:
    """What is drawn: means over kept instances, NaN where none is."""
    dimensions, below_mean, _, below_count = by_threshold(data)
    kept = data["kept"][..., None]
    count = np.maximum(kept.sum(axis=1), 1)
    mean = np.sum(np.where(kept, data["svmeq"], 0.0), axis=1) / count
    return {
        "dimensions": dimensions,
        "steps": data["steps"],
        "mean": np.where(kept.any(axis=1), mean, np.nan),
        "trials": np.asarray(data["kept"].shape[1]),
        "exponents": EXPONENTS,
        "below_mean": below_mean,
        "below_count": below_count,
    }
