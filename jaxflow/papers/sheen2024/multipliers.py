r"""`reproduce sheen2024 multipliers`: KKT residuals over log t of averaged (A.5) and of instantaneous multipliers."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.sheen2024.diagonal_claims import (
    claims_of_multipliers,
    hypotheses_of_theorem_4_1,
    inside_theorem_4_1,
)
from jaxflow.papers.sheen2024.diagonal_paths import LOG_TIMES, MARGIN, SHAPE, Cell, follow_diagonal
from jaxflow.plots import draw_multipliers

TRIALS = {"quick": 8, "paper": 64, "large": 2048}
OMEGAS = (1.0, 1e-3)
KEPT = ("inside", "hypotheses", "stationarity", "predicted", "slackness", "gap", "margin", "kappa", "program_gap",
        "weights_gap", "behind", "least_multiplier", "second_gap")  # fmt: skip


@register_figure(
    "sheen2024",
    "multipliers",
    title="KKT residuals of the proof's averaged multipliers and of the instantaneous ones, to log t = 1e6",
    run_times={
        "quick": "8 instances for each of 2 starts, under a minute once compiled",
        "paper": "64 instances for each of 2 starts, some minutes",
        "large": "2,048 instances for each of 2 starts, about an hour on two cores",
    },
)
class Multipliers(AbstractFigure):
    r"""Random data of Assumptions 2 and 3 (n = 3, L = d = 4); the same instances for both $\omega_0$."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2), TRIALS[scale])
        found = []
        for omega in OMEGAS:
            say(f"{len(keys)} instances with omega_0 = {omega:g}")
            one = follow_diagonal(Cell(*SHAPE, 1.1, omega, margin=MARGIN), keys, both=False, rtol=1e-9)
            found.append(one | {"inside": inside_theorem_4_1(one), "hypotheses": hypotheses_of_theorem_4_1(one)})
        data: Data = {"log_times": LOG_TIMES, "omegas": np.asarray(OMEGAS)}
        data |= {name: np.stack([each[name] for each in found]) for name in KEPT}
        # The instance that is drawn whole: the first inside the hypotheses for every start, else the first.
        both = np.all(data["inside"], axis=0)
        shown = int(np.argmax(both))
        return data | {name: np.stack([each[name][shown] for each in found]) for name in ("averaged", "instantaneous")}

    def draw(self, data: Data) -> Any:
        return draw_multipliers(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of_multipliers(data)
