"""`reproduce boix2023 fig10`: noise on the weights at random times (Assumption 4.4)."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.boix2023 import perturbations
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import draw_perturbations
from jaxflow.report import Claim

RUN_TIMES = {
    "quick": "60 samples of 5 x 4 tokens, under a minute",
    "paper": "1,000 samples of 10 x 50 tokens, three minutes of processor time, most of it Algorithm 1",
    "large": "as paper, 40 stages, for an accelerator",
}

SENTENCE = "The training dynamics quickly converge to the original unperturbed trajectory (Assumption 4.4)."


@register_figure("boix2023", "fig10", title="Noise of 0.05 on the learned weights at random times", run_times=RUN_TIMES)
class Figure10(AbstractFigure):
    r"""Figure 10 of Boix-Adserà et al. (2023): α = 1e-32, five random times, noise of standard deviation 0.05 on
    every weight above 1e-5."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        run = perturbations.prepare(scale, seed, say)
        windows = perturbations.random_windows(run, perturbations.PLATEAU.count)
        return perturbations.perturb(run, windows, perturbations.PLATEAU, "p", say)

    def draw(self, data: Data) -> Any:
        count = len(data["pstart"])
        titles = tuple(f"({'abcde'[i]}) from {time:.3g}" for i, time in enumerate(data["pstart"]))
        return draw_perturbations(data, tuple(f"p{i}" for i in range(count)), titles)

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return [perturbations.claim(data, "p", "Figure 10", SENTENCE)], perturbations.notes()
