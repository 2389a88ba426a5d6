r"""`reproduce sheen2024 equivalence`, `rates`: flows of diagonal weights, equal, growing, and how fast they converge.

The flows of $(\xi_k,\xi_q)$ and $(w_+,w_-)$, and the integral identity (19); the observed rate of
$\|\beta\|_1/\mu$ against the slack of the certified dual.
"""

from typing import Any

import numpy as np

from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import BELOW_ZERO, Rate, Statement, Table, common_rate, largest, register
from jaxflow.papers.sheen2024.diagonal_flows import (
    DIAGONAL,
    FIRST,
    LOG_TIMES,
    OMEGAS,
    ROUNDING,
    hypotheses_of,
    inside_of,
)
from jaxflow.papers.sheen2024.multipliers import (
    ACTIVE,
    FALLS,
    INSTANT,
    averaged,
    certified_now,
    exponents_between,
    factor,
)
from jaxflow.plots import COLORS, CURVES, new_figure

# Two flows of steps of relative error 1e-10, held against each other.
EQUAL = 1e-8
# β = ω₀² sinh(Bφ) takes the integral's error times β's own size: two digits more than a step's.
IDENTITY = 1e-6
# An exponent in log t, between 1e5 and 1e6: constants beside log t, of some units, over log t = 1e5 are far less; small
# ω₀ delay the growth, by a few percent of ln μ.
GROWTH = 0.05
# A norm that grows with a smaller power of log t may come to rest.
SLOW = 0.5


def followed(flows: Table, values: np.ndarray) -> np.ndarray:
    """Values of the flows that reached their ends; of the others nothing is known."""
    return np.where(flows.ok, values, np.nan)


def _growth(numbers: Table) -> np.ndarray:
    """The exponent of log t in ‖β‖ over its last decade: 1 where ‖β‖ grows like log t, 0 where it stays."""
    return -exponents_between(numbers.flows.size, LOG_TIMES)


EQUAL_FLOWS = Statement[Table](
    source="Lemma 4.1",
    says="The dynamics of β and w are equivalent, i.e., β(t) = w(t) for all t ≥ 0: (ξ_k, ξ_q) and (w_+, w_-) from (5), "
    "at 25 times up to log t = 1e6.",
    residual=lambda n: followed(n.flows, np.max(n.flows.apart, axis=-1)),
    bound=(EQUAL, "|β − w| / |β|, both largest entries"),
)

INTEGRAL_FORM = Statement[Table](
    source="Lemma A.1",
    says="For all t ≥ 0, β(t) = ω₀² ⊙ sinh(Bφ(t)).  (19)  With φ carried as an integral along the path to log t = 1e6.",
    residual=lambda n: followed(n.flows, np.max(n.flows.identity, axis=-1)),
    bound=(IDENTITY, "|β − ω₀² sinh(Bφ)| / |β|, both largest entries"),
)

DISPLAY = Statement[Table](
    source="Lemma A.1",
    says="β̇(t) = (2/n) √(β² + ω₀⁴) ⊙ Σ −exp(−γᵀσ)(Σγ)_l B_il, its second display, at 25 times up to log t = 1e6.",
    residual=lambda n: followed(n.flows, np.max(n.flows.display, axis=-1)),
    bound=(IDENTITY, "|difference| / |β̇|, both largest entries"),
)

GROWING = Statement[Table](
    source="Lemma 4.2",
    says="‖β(t)‖ → ∞ under Assumption 2, where the ℓ1-SVM is feasible (like log t).",
    inside=lambda n: np.asarray(n.flows.diagonal > 0),
    residual=lambda n: followed(n.flows, np.maximum(1.0 - _growth(n), 0.0)),
    bound=(1.0 - SLOW, "1 − the exponent of log t, or 0 where that is above 1"),
    rate=lambda n, known: common_rate(_growth(n)[known], 1.0, bias=GROWTH, law="‖β‖ against log t"),
)


def equivalence_notes(numbers: Table) -> list[str]:
    """What the table does not say."""
    flows = numbers.flows
    return [
        f"ξ_k² − ξ_q² is conserved to {largest(flows.conserved[flows.ok]):.1e} of ‖β‖ + ω₀². Distances are relative to "
        "the largest entry of β: β(0) = 0, and entries off the support stay small.",
    ]


def draw_equivalence(numbers: Table) -> Any:
    r"""One instance's $\beta(t)$ from both flows; their distance and the integral identity's; $\|\beta\|$ and μ."""
    flows, late = numbers.flows, LOG_TIMES >= FIRST
    figure, axes = new_figure(3, width=12.5)
    times, beta, w = LOG_TIMES[late], flows.beta[0, 0], flows.coefficients[0, 0]
    for j in range(beta.shape[1]):
        label = (r"flow of $(\xi_k,\xi_q)$", r"flow of $(w_+,w_-)$") if j == 0 else (None, None)
        axes[0].plot(times, beta[late, j], color=COLORS["diagonal"], linewidth=1.2, label=label[0])
        axes[0].plot(times, w[late, j], ".", color=COLORS["program"], markersize=3, label=label[1])
    axes[0].set_yscale("symlog", linthresh=0.1)
    dress(axes[0], rf"(a) one instance, $\omega_0={OMEGAS[0]:g}$", y=r"$\beta_j(t)$")
    apart = ((flows.apart, "-", r"$\|\beta-w\|_\infty$"), (flows.identity, ":", r"$\|\beta-\omega_0^2\sinh(B\phi)\|$"))
    sizes = ((flows.size, "-", r"$\|\beta\|_2$"), (flows.margin, ":", r"$\mu$"))
    for axis, pairs, least in ((axes[1], apart, ROUNDING), (axes[2], sizes, np.nan)):
        for color, omega, row in zip(CURVES, OMEGAS, range(len(flows.ok)), strict=False):
            for values, line, symbol in pairs:
                kept = values[row][flows.ok[row]][:, late]
                if len(kept):
                    # NaN where no instance has a positive value yet: the line has a gap there.
                    top = np.fmax.reduce(np.where(kept > 0, kept, least), axis=0)
                    axis.plot(times, top, line, color=color, label=rf"{symbol}, $\omega_0={omega:g}$", linewidth=1.4)
        axis.set_yscale("log")
    axes[1].axhline(EQUAL, color=COLORS["faint"], linewidth=0.8)
    dress(axes[1], "(b) Lemma 4.1 and (19)", y=r"relative to $\|\beta\|_\infty$")
    dress(axes[2], r"(c) Lemma 4.2: $\|\beta\|\to\infty$")
    for axis in axes:
        dress(axis, x=r"$\log t$", log="x", legend=7)
    figure.suptitle(f"largest over {flows.ok.shape[1]} instances for each start", fontsize=9)
    return figure


register(
    DIAGONAL,
    "equivalence",
    title="Lemma 4.1, (19) and Lemma 4.2: equal flows, their integral form, and growth, to log t = 1e6",
    statements=[EQUAL_FLOWS, INTEGRAL_FORM, GROWING],
    notes=equivalence_notes,
    draw=draw_equivalence,
)

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


def _difference(flows: Table) -> np.ndarray:
    """Observed exponent minus 1 − κ; NaN where there is none."""
    return np.where(inside_of(flows), observed_exponent(flows.weights_gap, LOG_TIMES) - (1.0 - flows.kappa), np.nan)


def _rate(flows: Table, known: np.ndarray) -> Rate | None:
    exponents = observed_exponent(flows.weights_gap, LOG_TIMES)[known]
    return common_rate(exponents, 1.0 - flows.kappa[known], bias=BENT, law=LAW)


# Of the first start, on the instances inside Theorem 4.1.
INSIDE: Any = {"of": lambda n: n.flows.at(ROW), "inside": hypotheses_of}

POWER_LAW = Statement[Table](
    source="beyond the paper",
    says="The distance from the ℓ1-SVM falls like (log t)^−(1−κ).",
    **INSIDE,
    residual=lambda flows: np.abs(_difference(flows)),
    bound=(BENT, "|observed exponent − (1 − κ)|"),
    rate=_rate,
    # An exponent that is another one at these times may still turn; 1 − κ is at most one, and so is how far it is off
    # where the distance falls at all, and no faster than twice as fast as it may.
    late=1.0,
)


def _fall(flows: Table) -> np.ndarray:
    """The distance at the end over that at log t = 1e3; infinity where a wrong token is selected, NaN while open."""
    fall = np.where(flows.selects == 1, flows.weights_gap[:, -1] / flows.weights_gap[:, MIDDLE], np.nan)
    return np.where(inside_of(flows), np.where(flows.selects == -1, np.inf, fall), np.nan)


SELECTION = Statement[Table](
    source="Theorem 4.1",
    says="Under Assumptions 2 and 3 the optimal tokens are selected, and the limit of β(t)/μ(t) solves the ℓ1-SVM.",
    **INSIDE,
    residual=_fall,
    bound=(FALLS, "‖β‖₁/(μ opt) − 1 at log t = 1e6 over that at 1e3"),
    rate=_rate,
    # It has not fallen at all.
    late=1.0,
)

FEASIBLE = Statement[Table](
    source="App. A.5 (C2)",
    says="1 − β̂ᵀB_il ≤ 0 for all i, l: by the definition of β̂ = β/μ wherever μ > 0, which is measured, from log t = "
    "1e5 on.",
    **INSIDE,
    # NaN of those that are not followed.
    residual=lambda flows: np.where(inside_of(flows), -np.min(flows.margin[:, -4:], axis=-1), np.nan),
    bound=(BELOW_ZERO, "−μ"),
)


def _continued_rate(numbers: Table, known: np.ndarray) -> Rate | None:
    """From the end of the flow that was integrated to the end of the limiting dynamics."""
    flows, on = numbers.flows.at(ROW), numbers.continued.at(0)
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
    inside=lambda n: hypotheses_of(n.flows.at(ROW)),
    residual=lambda n: np.where(inside_of(n.flows.at(ROW)) & n.continued.at(0).optimal, n.continued.at(0).gap, np.nan),
    bound=(INSTANT, "duality gap of the flow's certificate"),
    rate=_continued_rate,
    # Twice the optimum.
    late=1.0,
)


def notes(numbers: Table) -> list[str]:
    """Which instances wait for a constraint of their limit, and which have no single exponent."""
    flows = numbers.flows.at(ROW)
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
    flows, late = numbers.flows.at(ROW), LOG_TIMES >= 10.0
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
