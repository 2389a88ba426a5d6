"""What the paper says of general weights, against the numbers of `follow_aligned`."""

import numpy as np

from jaxflow.papers.registry import Data
from jaxflow.report import Claim, Evidence, bounded_evidence

# Rounding of some thousand steps, relative to ‖K‖.
ALIGNED = 1e-10
# The velocity's margins agree to 1/(log t)^2.
EXACT = 1e-8
# A sequence without a column keeps its start, attention one in L, until rounding has grown like e^(pt).
UNTRAINED = 1e-6
EARLY = 1.0


def inside_theorem_5_1(data: Data) -> np.ndarray:
    """Instances inside the hypotheses: Assumptions 2, 3 and 4."""
    return np.all([data[name] >= 0 for name in ("equal", "small", "orthogonal", "parallel", "paired")], axis=0)


def claims_of_alignment(data: Data) -> tuple[list[Claim], list[str]]:
    """Lemma 5.1, Theorem 5.1 and the condition d_e ≥ d."""
    inside = inside_theorem_5_1(data)
    rows = dict(zip((str(name) for name in data["starts"]), range(len(data["starts"])), strict=True))
    claims = [_lemma(data, inside, rows, name) for name in ("unbalanced", "balanced")]
    claims.append(_theorem(data, inside, rows["unbalanced"]))
    claims.append(_narrow(data))
    notes = [
        f"{int(inside.sum())} of {inside.size} instances satisfy Assumptions 2, 3 and 4.",
        *(_beyond(data, inside, rows, name) for name in ("balanced", "misaligned")),
        "The alignment error of a misaligned start is measured in the frame of the data; V is arbitrary there.",
    ]
    return claims, notes


def _lemma(data: Data, inside: np.ndarray, rows: dict[str, int], name: str) -> Claim:
    kept = inside & data["ok"][rows[name]]
    errors = data["alignment"][rows[name]].max(axis=-1)
    worst = float(errors[kept].max(initial=0.0))
    total = int(kept.sum())
    return Claim(
        "Lemma 5.1",
        f"For all t ≥ 0, K(t) = U_K Λ_K(t) Vᵀ and Q(t) = U_Q Λ_Q(t) Vᵀ ({name} aligned start).",
        f"largest part off the diagonals, relative to ‖K‖: {worst:.1e} to log t = 1e6, over {total} paths "
        f"({int((inside & ~data['ok'][rows[name]]).sum())} not followed to the end)",
        bounded_evidence(np.where(kept, errors, np.nan)[inside], ALIGNED),
        {"worst": worst, "paths": total},
    )


def _theorem(data: Data, inside: np.ndarray, row: int) -> Claim:
    kept = inside & data["ok"][row]
    errors = np.abs(data["oracle_excess"][row][:, -1])
    exact = errors[kept]
    weights = data["weights_excess"][row][kept, -1]
    worst, total = float(exact.max(initial=0.0)), int(kept.sum())
    return Claim(
        "Theorem 5.1",
        "The gradient flow limit Ŵ^∞ is a global optimal solution of (W⋆-SVM).",
        "nuclear norm of the flow's direction (its velocity at margin one) at log t = 1e6 against the exact limit: "
        f"within {worst:.1e} on {total} instances; that of W(t)/μ(t) itself is within "
        f"{weights.max(initial=0.0):.1e}, which falls like 1/log t",
        bounded_evidence(np.where(kept, errors, np.nan)[inside], EXACT),
        {"worst": worst, "instances": total},
    )


def _narrow(data: Data) -> Claim:
    ok, columns = data["narrow_ok"], int(data["narrow_columns"])
    early = data["log_times"] <= EARLY
    start = np.abs(data["narrow_attention"][ok][:, early] - 1.0 / int(data["L"]))
    last = data["narrow_trained"][ok][:, columns:]
    moved = float(start.max(initial=0.0))
    return Claim(
        "Theorem 5.1",
        f"d_e ≥ d is assumed; with d_e = {columns} < d a sequence with π(i) > d_e never trains.",
        f"on {len(start)} flows its attention stays at 1/L to {moved:.0e} up to log t = {EARLY:g}; that point is "
        "a saddle, at "
        "which rounding grows like e^(pt), and by log t = 1e6 its attention on the optimal token is above 0.99 on "
        f"{int((last > 0.99).all(axis=1).sum())} of them",
        Evidence(0),
        {"instances": len(start), "moved": moved},
    )


def _beyond(data: Data, inside: np.ndarray, rows: dict[str, int], name: str) -> str:
    kept = inside & data["ok"][rows[name]]
    if not kept.any():
        return f"{name} start: no instance was followed to log t = 1e6."
    velocity = data["velocity_excess"][rows[name]][kept, -1]
    middle = data["velocity_excess"][rows[name]][kept, -6]
    return (
        f"Outside the theorem, {name} start: on {int(kept.sum())} of {int(inside.sum())} instances the velocity's "
        f"nuclear norm is above the optimum by {np.median(velocity):.1e} (median; largest {velocity.max():.1e}) at "
        f"log t = 1e6, and by {np.median(middle):.1e} at log t = {data['log_times'][-6]:.0e}."
    )
