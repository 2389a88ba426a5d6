r"""`reproduce sheen2024 equivalence`: the flows of $(\xi_k,\xi_q)$ and $(w_+,w_-)$, and the integral identity (19)."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.sheen2024.diagonal_claims import claims_of_equivalence
from jaxflow.papers.sheen2024.diagonal_paths import LOG_TIMES, MARGIN, SHAPE, Cell, follow_diagonal
from jaxflow.plots import draw_equivalence

TRIALS = {"quick": 4, "paper": 32, "large": 1024}
OMEGAS = (1.0, 0.1, 1e-3)
KEPT = ("ok", "apart", "identity", "conserved", "size", "margin", "diagonal", "steps")


@register_figure(
    "sheen2024",
    "equivalence",
    title="Lemma 4.1, (19) and Lemma 4.2: equal flows, their integral form, and growth, to log t = 1e6",
    run_times={
        "quick": "4 instances for each of 3 starts, under a minute once compiled",
        "paper": "32 instances for each of 3 starts, 4 minutes of processor time",
        "large": "1,024 instances for each of 3 starts, about an hour on two cores",
    },
)
class Equivalence(AbstractFigure):
    r"""Random data of Assumptions 2 and 3 (n = 3, L = d = 4); the same instances for every $\omega_0$."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), TRIALS[scale])
        found = []
        for omega in OMEGAS:
            say(f"{len(keys)} instances with omega_0 = {omega:g}")
            found.append(follow_diagonal(Cell(*SHAPE, 1.1, omega, margin=MARGIN), keys))
        data: Data = {"log_times": LOG_TIMES, "omegas": np.asarray(OMEGAS)}
        data |= {name: np.stack([each[name] for each in found]) for name in KEPT}
        return data | {name: np.stack([each[name][0] for each in found]) for name in ("beta", "coefficients")}

    def draw(self, data: Data) -> Any:
        return draw_equivalence(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of_equivalence(data)
