"""`reproduce sheen2024 alignment`: alignment along the flow of (K, Q), and the exact limit of Theorem 5.1."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.sheen2024.aligned_claims import claims_of_alignment
from jaxflow.papers.sheen2024.aligned_paths import SHAPE, STARTS, Setting, follow_aligned, log_times
from jaxflow.plots import draw_alignment

TRIALS = {"quick": 8, "paper": 32, "large": 512}
# d_e < d: the second sequence's direction has no column.
NARROW = 1
KEPT = ("ok", "alignment", "weights_excess", "velocity_excess", "oracle_excess", "conserved", "steps", "trained")


@register_figure(
    "sheen2024",
    "alignment",
    title="Lemma 5.1 and Theorem 5.1: alignment and the way to the exact limit, from three starts, to log t = 1e6",
    run_times={
        "quick": "8 instances for each of 3 starts and 8 with d_e < d, a minute once compiled",
        "paper": "32 instances for each of 3 starts and 32 with d_e < d, some minutes",
        "large": "512 instances for each of 3 starts and 512 with d_e < d, about an hour on two cores",
    },
)
class Alignment(AbstractFigure):
    r"""Random data of Assumptions 2, 3 and 4 (n = 2, L = 3, d = 4); the same instances for every start."""

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 3), TRIALS[scale])
        found = []
        for start in STARTS:
            say(f"{len(keys)} instances from the {start} start")
            found.append(follow_aligned(Setting(*SHAPE, start=start), keys))
        data: Data = {
            "log_times": log_times(),
            "starts": np.asarray(STARTS),
            "L": np.asarray(SHAPE[1]),
            "d": np.asarray(SHAPE[2]),
        }
        data |= {name: np.stack([each[name] for each in found]) for name in KEPT}
        data |= {name: found[0][name] for name in ("equal", "small", "orthogonal", "parallel", "paired")}
        say(f"{len(keys)} instances with d_e = {NARROW}")
        narrow = follow_aligned(Setting(*SHAPE, columns=NARROW), keys)
        data |= {f"narrow_{name}": narrow[name] for name in ("ok", "trained", "attention")}
        return data | {"narrow_columns": np.asarray(NARROW)}

    def draw(self, data: Data) -> Any:
        return draw_alignment(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of_alignment(data)
