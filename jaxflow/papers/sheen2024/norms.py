"""`reproduce sheen2024 norms`: one data set, three parametrisations, three norms (§4.2)."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxflow._core import Outcome
from jaxflow.margin import ProgramResult
from jaxflow.papers.registry import AbstractFigure, Data, register_figure
from jaxflow.papers.sheen2024.three_limits import KINDS, NORMS, follow_limits
from jaxflow.plots import draw_three_norms
from jaxflow.report import Claim, Evidence, bounded_evidence, count_evidence

TRIALS = {"quick": 8, "paper": 48, "large": 512}
CERTIFIED = 1e-8
# Limits whose norms are closer than this are not told apart.
APART = 1e-3


@register_figure(
    "sheen2024",
    "norms",
    title="§4.2: limits of W, (K, Q) and diagonal weights on one data set, each the least in its own norm",
    run_times={
        "quick": "8 data sets, under a minute once compiled",
        "paper": "48 data sets, some minutes",
        "large": "512 data sets, half an hour on two cores",
    },
)
class Norms(AbstractFigure):
    r"""Random data of Assumption 2 with 1.1 times the gap that Assumption 3 needs (n = L = 4, d = 5).

    The picture shows the first data set on which all three limits are directions that select the optimal tokens.
    """

    def compute(self, scale: str, seed: int, say: Callable[[str], None]) -> Data:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 5), TRIALS[scale])
        data: Data = {"kinds": np.asarray(KINDS), "norms": np.asarray(NORMS)}
        for kind in KINDS:
            say(f"{len(keys)} limits, {kind}")
            found = follow_limits(kind, keys)
            data |= {f"{kind}_{name}": value for name, value in found.items()}
        good = np.all([data[f"{kind}_outcome"] == Outcome.globally_optimal for kind in KINDS], axis=0)
        shown = int(np.argmax(good))
        data["weights"] = np.stack([data[f"{kind}_weights"][shown] for kind in KINDS])
        data["ratio"] = np.stack([data[f"{kind}_ratio"][shown, :2] for kind in KINDS])
        data["shown_l1"] = np.stack([data[f"{kind}_ratio"][shown, 2] for kind in KINDS])
        return data | {"shown": np.asarray(shown), "all_good": good}

    def draw(self, data: Data) -> Any:
        return draw_three_norms(data)

    def claims(self, data: Data) -> tuple[list[Any], list[str]]:
        return claims_of_norms(data)


def claims_of_norms(data: Data) -> tuple[list[Claim], list[str]]:
    """Each limit is optimal for its own norm, and not for the others."""
    good = data["all_good"]
    solved = np.all([data[f"{kind}_results"] == ProgramResult.optimal for kind in KINDS], axis=(0, 2))
    # All three programs must have a solution; where one has none there is no limit to compare.
    infeasible = [np.any(data[f"{kind}_results"] == ProgramResult.infeasible, axis=1) for kind in KINDS]
    inside = ~np.any(infeasible, axis=0)
    kept = good & solved
    total = int(kept.sum())
    claims = [_own(data, inside, kept, kind, column) for column, kind in enumerate(KINDS)]
    for kind, column, other in (("combined", 1, "nuclear"), ("factored", 0, "Frobenius"), ("diagonal", 1, "nuclear")):
        excess = data[f"{kind}_ratio"][:, column] - 1.0
        above = excess[kept]
        count = int(np.sum(above > APART))
        claims.append(
            Claim(
                "§4.2",
                f"The implicit regularisation differs: the limit of {kind} weights is not the least in the "
                f"{other} norm.",
                f"above the {other} optimum by more than {APART:g} on {count} of {total} data sets (median "
                f"{np.median(above) if total else np.nan:.2f})",
                count_evidence((excess > APART)[inside], decided=kept[inside]),
                {"apart": count, "instances": total},
            )
        )
    counts = []
    for kind in KINDS:
        codes, numbers = np.unique(data[f"{kind}_outcome"], return_counts=True)
        parts = ", ".join(f"{number} {Outcome(int(code)).name}" for code, number in zip(codes, numbers, strict=True))
        counts.append(f"{kind}: {parts}.")
    return claims, [*counts, f"{total} of {len(kept)} data sets have three such limits and three solved programs."]


def _own(data: Data, inside: np.ndarray, kept: np.ndarray, kind: str, column: int) -> Claim:
    certified = data[f"{kind}_gap"][kept]
    flow = data[f"{kind}_ratio"][kept, column] - 1.0
    worst, total = float(certified.max(initial=0.0)), int(kept.sum())
    name = ("Frobenius", "nuclear", "ℓ1")[column]
    return Claim(
        "§4.2" if kind != "diagonal" else "Theorem 4.1",
        f"The limit of {kind} weights is the least in the {name} norm.",
        f"certified to {worst:.1e} on {total} data sets; the flow's own direction is above the optimum by "
        f"{np.median(flow) if total else np.nan:.1e} (median; largest {flow.max(initial=-np.inf):.1e})",
        _own_evidence(data, inside, kept, kind, column),
        {"worst": worst, "instances": total},
    )


def _own_evidence(data: Data, inside: np.ndarray, kept: np.ndarray, kind: str, column: int) -> Evidence:
    """By the flow's own direction: that of W is there, those of (K, Q) and diagonal weights are on their way."""
    excess = np.where(kept, np.abs(data[f"{kind}_ratio"][:, column] - 1.0), np.nan)[inside]
    if kind == "combined":
        return bounded_evidence(excess, CERTIFIED)
    near = excess <= APART
    return count_evidence(near, decided=near, limit=True)
