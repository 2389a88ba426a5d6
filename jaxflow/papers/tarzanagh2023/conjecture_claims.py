"""What section 5.2 conjectures and suggests, against counts with Wilson's intervals."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.margin import AssumptionStatus
from jaxflow.papers.tarzanagh2023.percent import interval
from jaxflow.report import Claim, count_evidence
from jaxflow.study import wilson

Data = dict[str, np.ndarray]

SENTENCES = {
    "B1 and D": (
        "Section 5.2, conjecture",
        "Suppose opt are the unique optimal indices and Assumptions B.1 and D hold. Then, for almost all datasets, GD "
        "converges to W^mm in direction.",
    ),
    "unique": (
        "Section 5.2",
        "When the globally-optimal direction is the only locally-optimal one, it is the only viable one to converge "
        "to (weaker than Assumption D).",
    ),
}

CURVES = {
    "flow": "flow converges globally",
    "descent": "normalised descent, 2,000 steps",
    "unique": "opt is the only locally-optimal choice",
    "D": "Assumption D",
    "support": "all optimal tokens are support, always",
    "B1": "Assumption B.1",
    "B1 and D": "Assumptions B.1 and D",
}


def claims_of(data: Data) -> tuple[list[Claim], list[str]]:
    """The conjecture, the weaker condition, the frequencies that §5.2 compares; and notes."""
    claims = [_converges(data, name) for name in SENTENCES]
    claims += [_less_frequent(data), _implies(data, "support", "D"), _implies(data, "D", "unique")]
    trials = data["flow"].shape[1]
    shares = "; ".join(
        f"d={d}: {100 * _met(data, 'B1 and D')[i].mean():.1f}% ({100 * _met(data, 'unique')[i].mean():.1f}%)"
        for i, d in enumerate(data["d"])
    )
    unsure = {n: int((data[n] == AssumptionStatus.undecided).sum()) for n in ("B1", "D", "support", "unique")}
    return claims, [
        f"{trials} instances for each d, none dropped. Share with B.1 and D (with one locally-optimal choice): "
        f"{shares}.",
        f"Undecided, because a margin lies within 1e-6 of one or a program is inaccurate: {unsure}. They count as not "
        "met.",
        "Descent is counted by the tokens that it has settled on, not by a certificate of its direction.",
        "Other outcomes of the flow: " + _others(data, "flow") + "; of descent: " + _others(data, "descent") + ".",
        "Infeasible choices have no support indices; Assumption D is read over feasible ones.",
    ]


def _met(data: Data, name: str) -> np.ndarray:
    if name in ("flow", "descent"):
        return data[name] == Outcome.globally_optimal
    if name == "B1 and D":
        return _met(data, "B1") & _met(data, "D")
    return data[name] == AssumptionStatus.holds


def _converges(data: Data, name: str) -> Claim:
    source, sentence = SENTENCES[name]
    inside, flow, descent = _met(data, name), _met(data, "flow"), _met(data, "descent")
    total, count = int(inside.sum()), int((inside & flow).sum())
    # A path that was not followed to its end is no counterexample.
    against = inside & np.isin(data["flow"], [Outcome.locally_optimal, Outcome.finite_stationary_point])
    low = float(wilson(np.asarray(count), np.asarray(total))[0]) if total else 0.0
    # Normalised descent takes other steps; where it does not go to W^mm either, both are against it.
    other = against & (data["descent"] == Outcome.locally_optimal)
    checked = f"normalised descent, which goes elsewhere on {int(other.sum())} of them" if other.any() else ""
    return Claim(
        source,
        sentence,
        f"of {total:,} instances that meet it the flow converges to W^mm on {count:,} (95% lower bound "
        f"{100 * low:.1f}%), against it {int(against.sum())}; descent on {int((inside & descent).sum()):,}; of the "
        f"{inside.size - total:,} others the flow does on {int((~inside & flow).sum()):,}",
        count_evidence(flow[inside], decided=(flow | against)[inside], checked_by=checked),
        {"instances": total, "flow": count, "against": int(against.sum()), "lower": low},
    )


def _less_frequent(data: Data) -> Claim:
    b1, flow = _met(data, "B1"), _met(data, "flow")
    only = int((b1 & ~flow).sum())
    rarer = b1.sum(1) <= flow.sum(1)
    less = bool(np.all(rarer))
    return Claim(
        "Section 5.2, on Figure 5",
        "Assumption B.1 occurs less frequently than global convergence.",
        f"at every d: {'yes' if less else 'no'}; {int(b1.sum()):,} instances with B.1, {int(flow.sum()):,} with global "
        f"convergence; B.1 without it: {only}",
        count_evidence(rarer),
        {"with B.1": int(b1.sum()), "global": int(flow.sum()), "B.1 alone": only},
    )


def _implies(data: Data, first: str, second: str) -> Claim:
    a, b = _met(data, first), data[second] == AssumptionStatus.violated
    broken, total = int((a & b).sum()), int(a.sum())
    known = data[second] != AssumptionStatus.undecided
    strict = int((~a & _met(data, second)).sum())
    return Claim(
        "Section 5.2",
        {
            "support": "A stronger condition that implies Assumption D: all optimal indices are support vectors.",
            "D": "Assumption D guarantees that W^mm is the only viable direction to converge.",
        }[first],
        f"{broken} of {total:,} instances break it; {strict:,} have the consequence alone",
        count_evidence(~b[a], decided=known[a]),
        {"instances": total, "broken": broken, "consequence alone": strict},
    )


def _others(data: Data, name: str) -> str:
    counts = np.bincount(data[name].ravel(), minlength=len(Outcome))
    parts = [f"{counts[c]} {c.name.replace('_', ' ')}" for c in Outcome if counts[c] and c != Outcome.globally_optimal]
    return ", ".join(parts) or "none"


def curves_of(data: Data) -> dict[str, Any]:
    """One panel for `jaxflow.plots.draw_percentage_curves`."""
    total = np.full(len(data["d"]), data["flow"].shape[1])
    shares = [interval(_met(data, name).sum(1), total) for name in CURVES]
    percentage, low, high = (np.stack([share[i] for share in shares])[None] for i in range(3))
    return {
        "x": data["d"],
        "x_label": "$d$",
        "panels": [f"$n={int(data['n'])}$, $T={int(data['T'])}$"],
        "curves": list(CURVES.values()),
        "percentage": percentage,
        "low": low,
        "high": high,
        "y_label": "% of all instances",
        "dashed": [name not in ("flow", "descent") for name in CURVES],
    }
