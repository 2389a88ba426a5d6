"""`reproduce boix2023 fig7`: stable rank after training for smaller initial weights."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.boix2023 import rank_claims
from jaxflow.papers.boix2023.fig6 import RUN_TIMES
from jaxflow.papers.boix2023.practical.runs import IMAGES, digits_key, image_runs
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import draw_rank_by_scale
from jaxflow.report import Claim


@register_figure("boix2023", "fig7", title="Stable rank after training from smaller weights", run_times=RUN_TIMES)
class Figure7(AbstractFigure):
    r"""Figure 7 of Boix-Adserà et al. (2023) in kind: a vision transformer on scikit-learn's digits.

    All layers are trained by Adam on the cross-entropy; the initial values of all layers but the token mapper
    are multiplied by the scale.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return image_runs(IMAGES[scale], digits_key(seed), say)

    def draw(self, data: Data) -> Any:
        return draw_rank_by_scale(data)

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return rank_claims.by_scale(data)
