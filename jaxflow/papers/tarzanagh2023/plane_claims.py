"""What figure 1 says, over all instances and not only the one that is drawn."""

import numpy as np

from jaxflow._core import SelectionStatus
from jaxflow.report import Claim, count_evidence

Data = dict[str, np.ndarray]

OWN = {
    "combined": ("frobenius", "nuclear", "W", "(Att-SVM)"),
    "factored": ("nuclear", "frobenius", "(K, Q)", "(Att-SVM*)"),
}

# 1 - corr of a direction that has arrived as far as a finite length lets it.
ALIGNED = 0.05

LOCALLY_OPTIMAL = (SelectionStatus.global_.value, SelectionStatus.local.value)


def claims_of(data: Data) -> tuple[list[Claim], list[str]]:
    """Claims with verdicts for W and (K, Q), and notes with every denominator."""
    claims = [claim for kind in OWN for claim in (_towards(data, kind, "flow"), _towards(data, kind, "descent"))]
    return claims, [_note(data, kind, way) for kind in OWN for way in ("flow", "descent")]


def decided(data: Data, kind: str, way: str) -> np.ndarray:
    """Runs whose attention settled on locally optimal tokens, both of whose programs were solved."""
    prefix = f"{kind}_{way}"
    solved = data[f"{prefix}_frobenius_solved"] & data[f"{prefix}_nuclear_solved"]
    return data[f"{prefix}_settled"] & solved & np.isin(data[f"{prefix}_status"], LOCALLY_OPTIMAL)


def _towards(data: Data, kind: str, way: str) -> Claim:
    own, other, symbol, program = OWN[kind]
    kept = decided(data, kind, way)
    near = data[f"{kind}_{way}_{own}_misalignment"][kept]
    far = data[f"{kind}_{way}_{other}_misalignment"][kept]
    # Both programs may have one solution; then neither is nearer. Rounding of 1 - corr is 1e-15.
    different = np.abs(far - near) > 1e-9
    nearer = int(np.sum((near < far)[different]))
    median, worst = (float(np.median(near)), float(near.max())) if len(near) else (np.nan, np.nan)
    # Those that are not there may be late, and what has not settled may do so: at a finite length both are open.
    there = int(np.sum(near <= ALIGNED))
    prefix = f"{kind}_{way}"
    asked = ~data[f"{prefix}_settled"] | np.isin(data[f"{prefix}_status"], LOCALLY_OPTIMAL)
    good = kept & (data[f"{prefix}_{own}_misalignment"] <= ALIGNED)
    evidence = count_evidence(good[asked], decided=good[asked], limit=True)
    name = "the flow" if way == "flow" else "the published descent"
    return Claim(
        "Figure 1, caption",
        f"GD trajectories of {symbol} converge towards the directions of {program}.",
        f"{name}: 1 - corr median {median:.1e}, largest {worst:.1e} on {len(near)} runs, at most {ALIGNED} on {there}; "
        f"nearer to it than to the other program on {nearer} of {int(different.sum())} where the two differ",
        evidence,
        {"median": median, "largest": worst, "runs": len(near), "nearer": nearer, "different": int(different.sum())},
    )


def _note(data: Data, kind: str, way: str) -> str:
    prefix = f"{kind}_{way}"
    total, settled = len(data[f"{prefix}_settled"]), data[f"{prefix}_settled"]
    best = (data[f"{prefix}_selection"] == data["optimal"]).all(axis=(1, 2)) & settled
    times = data[f"{prefix}_log_time"][settled]
    median = float(np.median(times)) if len(times) else np.nan
    return (
        f"{OWN[kind][2]}, {'flow' if way == 'flow' else 'published descent'}: {total} instances, {int(settled.sum())} "
        f"settled on one token a sequence, {int(best.sum())} of these on the optimal ones, "
        f"{int(decided(data, kind, way).sum())} on locally optimal ones; median log t = {median:.3g}."
    )
