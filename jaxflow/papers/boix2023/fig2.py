"""`reproduce boix2023 fig2`: loss and entries of a diagonal attention head, down to α = e^(−10000)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow.papers.boix2023.stage_claims import claims_of
from jaxflow.papers.boix2023.toy import SIZES, make_task, paths_data
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import draw_stages
from jaxflow.report import Claim

RUN_TIMES = {
    "quick": "60 samples of 5 x 4 tokens, 4 scales, under a minute",
    "paper": "1,000 samples of 10 x 50 tokens, 8 scales, a dozen stages, 9 minutes of processor time",
    "large": "as paper, 40 stages, for an accelerator",
}

# Panel (b) shows the smallest scale of the paper.
SHOWN = -32.0 * np.log(10.0)


@register_figure(
    "boix2023", "fig2", title="Loss and entries of a diagonal attention head in stages", run_times=RUN_TIMES
)
class Figure2(AbstractFigure):
    r"""Figure 2 of Boix-Adserà et al. (2023): loss against rescaled time for many α, entries at α = 1e-32.

    A teacher with random diagonal weights labels Gaussian sequences; the student starts at $\alpha\theta_0$, $\theta_0$
    Gaussian, and follows the gradient flow of the mean squared error. Algorithm 1 is drawn over it.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(scale, seed, say)

    def draw(self, data: Data) -> Any:
        return draw_stages(data, int(np.argmin(np.abs(data["log_alphas"] - SHOWN))))

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return claims_of(data)


def compute(scale: str, seed: int, say: Callable[[str], None]) -> Data:
    """The flows of one scale of sizes; figures 8 and 9 show the same."""
    size = SIZES[scale]
    return paths_data(make_task(size, seed, say), size, say)
