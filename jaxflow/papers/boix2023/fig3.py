"""`reproduce boix2023 fig3`: one perturbation on a plateau, one at the beginning of a stage."""

from collections.abc import Callable
from typing import Any

from jaxflow.papers.boix2023 import fig10, fig11, perturbations
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.plots import draw_perturbations
from jaxflow.report import Claim


@register_figure("boix2023", "fig3", title="The assumptions of Theorem 4.1 under noise", run_times=fig10.RUN_TIMES)
class Figure3(AbstractFigure):
    r"""Figure 3 of Boix-Adserà et al. (2023): (a) one of figure 10's perturbations, (b) one of figure 11's."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        run = perturbations.prepare(scale, seed, say)
        late = perturbations.random_windows(run, perturbations.PLATEAU.count)[-1:]
        entry = perturbations.entry_windows(run, 3)[-1:]
        plateau = perturbations.perturb(run, late, perturbations.PLATEAU, "p", say)
        return plateau | perturbations.perturb(run, entry, perturbations.ENTRY, "e", say)

    def draw(self, data: Data) -> Any:
        return draw_perturbations(data, ("p0", "e0"), ("(a) Assumption 4.4", "(b) Assumption 4.5"))

    def claims(self, data: Data) -> tuple[list[Claim], list[str]]:
        return [
            perturbations.claim(data, "p", "Figure 3 (a)", fig10.SENTENCE),
            perturbations.claim(data, "e", "Figure 3 (b)", fig11.SENTENCE),
        ], perturbations.notes()
