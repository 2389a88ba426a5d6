"""What Section 5 of Tarzanagh et al. (2023) says about figure 7, held against the numbers."""

import numpy as np

from jaxflow._core import Outcome
from jaxflow.report import Claim, Evidence, common_rate, count_evidence

SOURCE = "Section 4.2, Figure 7"
NAMES = {"combined": "W", "factored": "(K, Q)"}
OWN = {"combined": "frobenius", "factored": "nuclear"}
PROGRAMS = {"frobenius": "(Att-SVM)", "nuclear": "(Att-SVM*)"}

# 1 − corr below this is a correlation of 1 to ten digits, past every rate that matters.
REACHED = 1e-10
# On its way, and as near as a finite length lets it: as in figures 1 and 10.
ALIGNED = 0.05
# A share of attention that differs from 1 by less than this is 1 to rounding of the sum over T tokens.
PROBABILITY_ONE = 1e-12

# Where the published ridge on the gradient norms of K and Q, 2.22e-16, overtakes the gradients: e^-36.
RIDGE_NOTE = (
    "The published descent on (K, Q) adds 2.22e-16 to the gradient norms by which it divides. From about log t = 36 on "
    "gradients are smaller than that, and it is plain descent with a step of 0.1 / 2.22e-16, far beyond the stability "
    "limit, no longer an approximation of the flow: that is where its curve leaves the flow's."
)

Data = dict[str, np.ndarray]


def claims_of(data: Data) -> tuple[list[Claim], list[str]]:
    """Claims with verdicts, and notes with every denominator."""
    claims = [_selection(data), *(_convergence(data, kind) for kind in NAMES), _bias(data)]
    counts = [_counts(data, kind) for kind in NAMES]
    return claims, [*counts, *(_descent(data, kind) for kind in NAMES), RIDGE_NOTE, _uniqueness(data)]


def _selection(data: Data) -> Claim:
    parts, contradicted, undecided, total = [], 0, 0, 0
    values: dict[str, float | int] = {}
    for kind, name in NAMES.items():
        outcome = data[f"{kind}_outcome"]
        known = ~np.isin(outcome, [Outcome.undecided, Outcome.failed])
        smallest = data[f"{kind}_attention_last"]
        selected = known & (smallest >= 1.0 - PROBABILITY_ONE)
        contradicted += int(np.sum(known & ~selected))
        undecided += int(np.sum(~known))
        total += known.size
        values |= {f"{kind}_selected": int(selected.sum()), f"{kind}_decided": int(known.sum())}
        parts.append(f"{name}: {selected.sum()} of {known.sum()} decided instances")
    return Claim(
        SOURCE,
        "Both scenarios result in probability 1, which indicates that attention weights succeed in selecting one "
        "token per input.",
        "every sequence gives one token probability 1 to 1e-12; " + ", ".join(parts),
        Evidence(total, contradicted, undecided),
        values,
    )


def _convergence(data: Data, kind: str) -> Claim:
    own = OWN[kind]
    outcome = data[f"{kind}_outcome"]
    inside = np.isin(outcome, [Outcome.globally_optimal, Outcome.locally_optimal])
    # One that was not followed to its end may have selected them.
    open_ = int(np.sum(np.isin(outcome, [Outcome.undecided, Outcome.failed])))
    name = "W" if kind == "combined" else "K Q^T"
    source = f"{SOURCE} ({'b' if own == 'frobenius' else 'c'}), Theorem {7 if kind == 'combined' else 2}"
    sentence = f"{name} ultimately reaches a 1 correlation with the solution of {PROGRAMS[own]}."
    if not inside.any():
        return Claim(source, sentence, "no instance selected locally optimal tokens", Evidence(open_, 0, open_), {})
    times = data[f"{kind}_log_time"]
    # The last decade of log t.
    early = int(np.searchsorted(times, times[-1] / 10.0))
    distance, excess = data[f"{kind}_{own}"][inside], data[f"{kind}_{own}_excess"][inside]
    last, least = distance[:, -1], excess[:, -1]
    span = np.log(times[-1] / times[early])
    rates = np.log(excess[:, early] / np.maximum(least, 1e-300)) / span
    growing = int(np.sum((last > REACHED) & ~(rates > 0)))
    values: dict[str, float | int] = {
        "instances": int(inside.sum()),
        "one_minus_corr_median": float(np.median(last)),
        "one_minus_corr_max": float(last.max()),
        "excess_median": float(np.median(least)),
        "excess_max": float(least.max()),
        "exponent_median": float(np.median(rates)),
        "exponent_min": float(rates.min()),
    }
    measured = (
        f"at log t = {times[-1]:.0e}, {inside.sum()} locally optimal instances: 1 - corr median {np.median(last):.1e}, "
        f"largest {last.max():.1e}; objective above the optimum by a median of {np.median(least):.1e}, at most "
        f"{least.max():.1e}, falling like (log t)^-e with e = {np.median(rates):.2f} (median), {rates.min():.2f} "
        "(slowest)"
    )
    # What is far from a correlation of 1, or does not come nearer, is late or never will: it is undecided.
    good = np.append((last <= REACHED) | ((rates > 0) & (last <= ALIGNED)), np.zeros(open_, bool))
    rate = common_rate(rates, None, law="objective above the optimum against log t")
    values["growing"] = growing
    evidence = count_evidence(good, decided=good, limit=bool(last.max() > REACHED), rate=rate)
    return Claim(source, sentence, measured, evidence, values)


def _bias(data: Data) -> Claim:
    parts, against, total, open_ = [], 0, 0, 0
    values: dict[str, float | int] = {}
    for kind, name in NAMES.items():
        open_ += int(np.sum(np.isin(data[f"{kind}_outcome"], [Outcome.undecided, Outcome.failed])))
        kept = data[f"{kind}_direction"]
        other = "nuclear" if OWN[kind] == "frobenius" else "frobenius"
        own_last, other_last = data[f"{kind}_{OWN[kind]}"][kept][:, -1], data[f"{kind}_{other}"][kept][:, -1]
        nearer = int(np.sum(own_last < other_last))
        against += int(kept.sum()) - nearer
        total += int(kept.sum())
        values |= {f"{kind}_nearer_to_own": nearer, f"{kind}_directions": int(kept.sum())}
        if kept.any():
            parts.append(
                f"{name} nearer to {PROGRAMS[OWN[kind]]} on {nearer} of {kept.sum()} (1 - corr to the other "
                f"program: median {np.median(other_last):.1e})"
            )
    return Claim(
        SOURCE,
        "These demonstrate the Frobenius norm bias of W(k) and the nuclear norm bias of K(k)Q(k)^T.",
        "; ".join(parts) or "no instance tends to a direction",
        Evidence(total + open_, against, open_),
        values,
    )


def _counts(data: Data, kind: str) -> str:
    outcome = data[f"{kind}_outcome"]
    codes, counts = np.unique(outcome, return_counts=True)
    parts = [f"{count} {Outcome(int(code)).name}" for code, count in zip(codes, counts, strict=True)]
    return f"{NAMES[kind]}: {len(outcome)} instances, none left out: {', '.join(parts)}."


def _descent(data: Data, kind: str) -> str:
    kept = data[f"{kind}_direction"] & data[f"{kind}_descent_agrees"]
    total = int(data[f"{kind}_direction"].sum())
    if not kept.any():
        return f"{NAMES[kind]}: descent selected the tokens of the flow on 0 of {total} instances."
    last = data[f"{kind}_descent_{OWN[kind]}"][kept][:, -1]
    return (
        f"{NAMES[kind]}: the published descent selects the tokens of the flow on {kept.sum()} of {total} instances "
        f"and ends there at 1 - corr {np.median(last):.1e} (median) and {last.max():.1e} (largest), at log t = "
        f"{np.median(data[f'{kind}_descent_log_time'][kept][:, -1]):.0f} (median)."
    )


def _uniqueness(data: Data) -> str:
    gaps = np.concatenate([data[f"{kind}_nuclear_gap"][data[f"{kind}_direction"]] for kind in NAMES])
    worst = f"{np.abs(gaps).max():.0e}" if gaps.size else "none"
    return (
        "The nuclear-norm program may have several solutions; the objective is compared beside the correlation. "
        f"Largest duality gap of its solutions here: {worst}."
    )
