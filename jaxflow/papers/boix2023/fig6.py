"""`reproduce boix2023 fig6`: spectra during training for smaller initial weights."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.boix2023 import rank_claims
from jaxflow.papers.boix2023.practical.runs import IMAGES, digits_key, image_runs
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import draw_spectra
from jaxflow.report import Claim

RUN_TIMES = {
    "quick": "5 seeds of 3 scales, 200 steps of Adam, under a minute",
    "paper": "5 seeds of 3 scales, 1,000 steps of Adam, some minutes on two cores",
    "large": "the published size of the model, for an accelerator",
}


@register_figure("boix2023", "fig6", title="Spectra during training for smaller initial weights", run_times=RUN_TIMES)
class Figure6(AbstractFigure):
    r"""Figure 6 of Boix-Adserà et al. (2023) in kind: a vision transformer on scikit-learn's digits.

    All layers are trained by Adam on the cross-entropy; the initial values of all layers but the token mapper
    are multiplied by the scale.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return image_runs(IMAGES[scale], digits_key(seed), say)

    def draw(self, data: Data) -> Any:
        return draw_spectra(data)

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return rank_claims.evolution(data)
