"""What Lemma 6 and figure 12 say of the number of selected tokens, against the numbers."""

import numpy as np

from jaxflow.papers.tarzanagh2023.concave_claims import (
    PROTOCOL,
    Data,
    end_of_descent,
    filter_notes,
    late_note,
    pearson,
    reaches,
    solved_note,
)
from jaxflow.report import Claim, Evidence, count_evidence


def claims_of_fig12(data: Data) -> tuple[list[Claim], list[str]]:
    """Claims with verdicts, and notes with every denominator; arrays `(τ, trial, ...)`."""
    claims = [
        _between(data, "Lemma 6", "exact_size", "the exact target"),
        _between(data, "Figure 12(c), flow", "flow_selected", PROTOCOL["flow"]),
        _between(data, "Figure 12(c), descent", "descent_selected", PROTOCOL["descent"], "descent_kept"),
        _together(data),
        reaches(data, "(9), Figure 12"),
    ]
    shares = [
        f"τ = {tau}: {draws.size / draws.sum():.1%} of random heads leave an interval for λ in (8)"
        for tau, draws in zip(data["taus"], data["exact_draws"], strict=True)
    ]
    near = int(data["exact_near_tie"].sum())
    return claims, [
        f"Acceptance, before an instance exists ({data['exact_draws'].shape[1]} instances each): {'; '.join(shares)}.",
        f"{near} of {data['exact_size'].size} counts were near ties and decided in rational arithmetic.",
        _sharper(data),
        "The proof in App. C.2 bounds the sum of s_i^2 over the top τ tokens by S_1^2/τ from above; by Cauchy-Schwarz "
        "it is at least that (equal for equal entries only), so the chain of implications breaks there. The lemma is "
        "true all the same: in the order of the scores token j has weight in s* exactly where the sum of "
        "m gap_m over m < j is below 2λ.",
        *filter_notes(data),
        end_of_descent(data),
        late_note(data),
        solved_note(data),
    ]


def _between(data: Data, source: str, counts_name: str, who: str, kept_name: str | None = None) -> Claim:
    counts, taus = data[counts_name], data["taus"][:, None]
    inside = (
        np.ones(counts.shape, bool) if counts_name.startswith("exact") else data[f"{counts_name.split('_')[0]}_good"]
    )
    outside = (counts < 2) | (counts > taus)
    few, many = int(np.sum(inside & (counts < 2))), int(np.sum(inside & (counts > taus)))
    measured = f"{who}: fewer than 2 in {few}, more than τ in {many} of {int(inside.sum())} instances"
    if kept_name is not None:
        kept = inside & data[kept_name]
        measured += f"; of its {int(kept.sum())} survivors {int(np.sum(kept & outside))} are outside"
    return Claim(
        source,
        "The optimal solution s* contains at least 2 and at most τ nonzero entries.",
        measured,
        count_evidence(~outside, decided=inside),
        {"few": few, "many": many, "instances": int(inside.sum())},
    )


def _together(data: Data) -> Claim:
    tau = np.broadcast_to(data["taus"][:, None], data["size"].shape).ravel()
    lam, size = data["lam"].ravel(), data["size"].ravel()
    values = {
        "tau_size": pearson(tau, size),
        "lam_size": pearson(lam, size),
        "tau_lam": pearson(tau, lam),
    }
    return Claim(
        "Figure 12",
        "The results indicate a positive correlation among τ, λ, and the number of selected tokens.",
        f"correlation coefficients over {size.size} instances: τ and number {values['tau_size']:.2f}, λ and number "
        f"{values['lam_size']:.2f}, τ and λ {values['tau_lam']:.2f}",
        # Three correlations.
        Evidence(3 if size.size > 1 else 0, sum(not value > 0 for value in values.values()) if size.size > 1 else 0),
        values,
    )


def _sharper(data: Data) -> str:
    reached = [
        f"τ = {tau}: {np.mean(sizes == tau):.0%}" for tau, sizes in zip(data["taus"], data["exact_size"], strict=True)
    ]
    return (
        "Exactly, s* has at least 2 entries where λ > gap_1/2 and at most τ where 2λ is at most the sum of m gap_m "
        f"over m ≤ τ: (8) requires more than that on both sides. The bound τ is attained on {', '.join(reached)}."
    )
