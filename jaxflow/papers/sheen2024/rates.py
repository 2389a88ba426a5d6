r"""`reproduce sheen2024 rates`: the observed rate of $\|\beta\|_1/\mu$ against the slack of the certified dual."""

from typing import Any

import numpy as np

from jaxflow.papers.drawing import dress
from jaxflow.papers.registry import register
from jaxflow.papers.sheen2024.diagonal_flows import DIAGONAL, LOG_TIMES, hypotheses_of, inside_of
from jaxflow.papers.sheen2024.equivalence import DISPLAY, EQUAL_FLOWS, GROWING, INTEGRAL_FORM
from jaxflow.papers.sheen2024.multipliers import ACTIVE, FALLS, INSTANT, averaged, certified_now, factor
from jaxflow.papers.statement import BELOW_ZERO, Statement
from jaxflow.papers.table import Table
from jaxflow.papers.verdicts import Rate, common_rate
from jaxflow.plots import COLORS, new_figure

# From ω₀ = 1 only the rate makes entries small.
ROW = 0
# The exponent is fitted over the last two decades of log t; where theirs differ by more there is no single one.
DECADES = 2.0
BENT = 0.1
# Where the fall of the distance from the ℓ1-SVM begins to be looked at.
MIDDLE = int(np.argmin(np.abs(LOG_TIMES - 1e3)))
LAW = "‖β‖₁/(μ opt) − 1 against log t"


def observed_exponent(gaps: np.ndarray, log_times: np.ndarray) -> np.ndarray:
    r"""Minus the slope of log gap against log log t, by least squares over the last decades; NaN without a gap."""
    late = log_times >= log_times[-1] / 10.0**DECADES
    x = np.log(log_times[late])
    x = x - x.mean()
    usable = np.all((gaps[:, late] > 0) & np.isfinite(gaps[:, late]), axis=1)
    y = np.log(np.where(usable[:, None], gaps[:, late], 1.0))
    return np.where(usable, -(y @ x) / (x @ x), np.nan)


def bend(gaps: np.ndarray, log_times: np.ndarray) -> np.ndarray:
    """By how much the exponents of the two last decades of log t differ; NaN without a gap."""
    end = log_times[-1]
    decades = [(log_times >= end / 10.0 ** (k + 1)) & (log_times <= end / 10.0**k * (1 + 1e-9)) for k in range(2)]
    late, before = (observed_exponent(gaps[:, part], log_times[part]) for part in decades)
    return np.abs(late - before)


def _flows(numbers: Table) -> Table:
    return numbers.flows.at(ROW)


def _difference(flows: Table) -> np.ndarray:
    """Observed exponent minus 1 − κ; NaN where there is none."""
    return np.where(inside_of(flows), observed_exponent(flows.weights_gap, LOG_TIMES) - (1.0 - flows.kappa), np.nan)


def _rate(numbers: Table, known: np.ndarray) -> Rate | None:
    flows = _flows(numbers)
    exponents = observed_exponent(flows.weights_gap, LOG_TIMES)[known]
    return common_rate(exponents, 1.0 - flows.kappa[known], bias=BENT, law=LAW)


POWER_LAW = Statement[Table](
    source="beyond the paper",
    says="The distance from the ℓ1-SVM falls like (log t)^−(1−κ).",
    inside=lambda n: hypotheses_of(_flows(n)),
    residual=lambda n: np.abs(_difference(_flows(n))),
    bound=BENT,
    unit="|observed exponent − (1 − κ)|",
    limit=True,
    rate=_rate,
    # An exponent that is another one at these times may still turn; 1 − κ is at most one, and so is how far it is off
    # where the distance falls at all, and no faster than twice as fast as it may.
    late=1.0,
)


def _fall(numbers: Table) -> np.ndarray:
    """The distance at the end over that at log t = 1e3; infinity where a wrong token is selected, NaN while open."""
    flows = _flows(numbers)
    fall = np.where(flows.selects == 1, flows.weights_gap[:, -1] / flows.weights_gap[:, MIDDLE], np.nan)
    return np.where(inside_of(flows), np.where(flows.selects == -1, np.inf, fall), np.nan)


SELECTION = Statement[Table](
    source="Theorem 4.1",
    says="Under Assumptions 2 and 3 the optimal tokens are selected, and the limit of β(t)/μ(t) solves the ℓ1-SVM.",
    inside=lambda n: hypotheses_of(_flows(n)),
    residual=_fall,
    bound=FALLS,
    unit="‖β‖₁/(μ opt) − 1 at log t = 1e6 over that at 1e3",
    limit=True,
    rate=_rate,
    # It has not fallen at all.
    late=1.0,
)


def _behind(numbers: Table) -> np.ndarray:
    """Minus the least margin from log t = 1e5 on; NaN of those that are not followed."""
    flows = _flows(numbers)
    return np.where(inside_of(flows), -np.min(flows.margin[:, -4:], axis=-1), np.nan)


FEASIBLE = Statement[Table](
    source="App. A.5 (C2)",
    says="1 − β̂ᵀB_il ≤ 0 for all i, l: by the definition of β̂ = β/μ wherever μ > 0, which is measured, from log t = "
    "1e5 on.",
    inside=lambda n: hypotheses_of(_flows(n)),
    residual=_behind,
    bound=BELOW_ZERO,
    unit="−μ",
)


def _continued_rate(numbers: Table, known: np.ndarray) -> Rate | None:
    """From the end of the flow that was integrated to the end of the limiting dynamics."""
    flows, on = _flows(numbers), numbers.continued.at(0)
    gaps, before = on.gap[known], flows.gap[known, -1]
    span = np.log(np.maximum(on.log_time[known], 1.0) / LOG_TIMES[-1])
    usable = (gaps > 0) & (before > 0) & (span > 0)
    falls = np.log(np.where(usable, before / np.where(usable, gaps, 1.0), 1.0))
    slopes = np.where(usable, falls / np.where(usable, span, 1.0), np.nan)
    return common_rate(slopes, None, law="duality gap against log t, from 1e6 on")


CONTINUED = Statement[Table](
    source="Theorem 4.1",
    says="β̂ tends to a KKT point of the ℓ1-SVM: by the flow's own multipliers and velocity where `find_limit` ends, by "
    "limiting dynamics.",
    inside=lambda n: hypotheses_of(_flows(n)),
    residual=lambda n: np.where(inside_of(_flows(n)) & n.continued.at(0).optimal, n.continued.at(0).gap, np.nan),
    bound=INSTANT,
    unit="duality gap of the flow's certificate",
    limit=True,
    rate=_continued_rate,
    # Twice the optimum.
    late=1.0,
)


def notes(numbers: Table) -> list[str]:
    """Which instances wait for a constraint of their limit, and which have no single exponent."""
    flows = _flows(numbers)
    inside = inside_of(flows) & np.isfinite(_difference(flows))
    good = np.abs(_difference(flows)[inside]) <= BENT
    waiting = flows.behind[inside] > ACTIVE
    bent = ~waiting & (bend(flows.weights_gap, LOG_TIMES)[inside] > BENT)
    settled = ~waiting & ~bent
    return [
        f"Of {good.size} exponents {waiting.sum()} wait for a constraint of their limit, until when the rate is that "
        f"of the program without it, and {bent.sum()} have no single exponent (the last two decades' differ by "
        f"more than {BENT}). Of the {settled.sum()} others {(settled & good).sum()} are within {BENT}.",
    ]


def draw(numbers: Table) -> Any:
    r"""How fast the weights' own gap falls, against the slack 1 − κ of the certified dual."""
    figure, axes = new_figure(2, width=9.0)
    flows, late = _flows(numbers), LOG_TIMES >= 10.0
    kept, slack, waiting = inside_of(flows), 1.0 - flows.kappa, flows.behind > ACTIVE
    exponents = observed_exponent(flows.weights_gap, LOG_TIMES)
    for row in np.flatnonzero(kept):
        shade = 0.15 + 0.7 * min(max(float(slack[row]), 0.0), 1.0)
        color = (0.9 * (1 - shade), 0.35, 0.15 + 0.75 * shade)
        axes[0].plot(LOG_TIMES[late], flows.weights_gap[row, late], color=color, linewidth=0.8)
    gap = r"$\|\beta\|_1/(\mu\,\mathrm{opt})-1$"
    dress(axes[0], r"(a) red: little slack $1-\kappa$, blue: much", r"$\log t$", gap, log="xy")
    for some, filling, label in ((kept & ~waiting, "full", None), (kept & waiting, "none", "waits for a constraint")):
        axes[1].plot(
            slack[some], exponents[some], "o", color=COLORS["diagonal"], markersize=3.5, fillstyle=filling,
            label=label if some.any() else None,
        )  # fmt: skip
    axes[1].plot([0, 1], [0, 1], "--", color=COLORS["program"], linewidth=0.9, label=r"exponent $=1-\kappa$")
    certified, exponent = r"$1-\kappa$, from the certified dual", r"observed exponent of $(\log t)^{-\cdot}$"
    dress(axes[1], f"(b) {int(kept.sum())} of {len(kept)} instances", certified, exponent, legend=8)
    return figure


register(
    DIAGONAL,
    "rates",
    title="How fast diagonal weights approach the ℓ1-SVM: (log t)^-(1-κ), with κ from the certified dual",
    statements=[POWER_LAW],
    notes=notes,
    draw=draw,
)

register(
    DIAGONAL,
    "diagonal",
    title="Lemmas 4.1, A.1, 4.2, Theorem 4.1, App. A.5",
    statements=[
        EQUAL_FLOWS,
        INTEGRAL_FORM,
        GROWING,
        SELECTION,
        certified_now(ROW),
        averaged(ROW),
        factor(printed=False),
        factor(printed=True),
        CONTINUED,
        DISPLAY,
        FEASIBLE,
    ],
)
