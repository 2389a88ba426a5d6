"""`reproduce boix2023 fig9`: the entries of diag(w_V) diag(w_O) for every α."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.boix2023.fig2 import RUN_TIMES, compute
from jaxflow.papers.boix2023.stage_claims import entry_claims_of
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import draw_entries
from jaxflow.report import Claim


@register_figure(
    "boix2023", "fig9", title="Entries of diag(w_V) diag(w_O) for smaller and smaller α", run_times=RUN_TIMES
)
class Figure9(AbstractFigure):
    r"""Figure 9 of Boix-Adserà et al. (2023): each entry of $w_V\odot w_O$ against rescaled time."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        return compute(scale, seed, say)

    def draw(self, data: Data) -> Any:
        return draw_entries(data, "VO")

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return entry_claims_of(data, "VO")
