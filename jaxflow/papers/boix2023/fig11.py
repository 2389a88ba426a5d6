"""`reproduce boix2023 fig11`: noise on the weights as a new one becomes active (Assumption 4.5)."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.boix2023 import perturbations
from jaxflow.papers.boix2023.fig10 import RUN_TIMES
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import draw_perturbations
from jaxflow.report import Claim

SENTENCE = "The nonlinear dynamics are robust and tend to the limiting endpoint under perturbation (Assumption 4.5)."


@register_figure("boix2023", "fig11", title="Noise of 0.01 as a weight becomes active", run_times=RUN_TIMES)
class Figure11(AbstractFigure):
    r"""Figure 11 of Boix-Adserà et al. (2023): α = 1e-32, noise of standard deviation 0.01 on every weight above 1e-5
    at times when one has just passed 1e-5."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        run = perturbations.prepare(scale, seed, say)
        windows = perturbations.entry_windows(run, perturbations.ENTRY.count)
        return perturbations.perturb(run, windows, perturbations.ENTRY, "p", say)

    def draw(self, data: Data) -> Any:
        count = len(data["pstart"])
        titles = tuple(f"({'abcde'[i]}) from {time:.3g}" for i, time in enumerate(data["pstart"]))
        return draw_perturbations(data, tuple(f"p{i}" for i in range(count)), titles)

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return [perturbations.claim(data, "p", "Figure 11", SENTENCE)], perturbations.notes()
