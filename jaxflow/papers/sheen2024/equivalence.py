r"""`reproduce sheen2024 equivalence`: the flows of $(\xi_k,\xi_q)$ and $(w_+,w_-)$, and the integral identity (19)."""

from typing import Any

import numpy as np

from jaxflow.papers.drawing import dress
from jaxflow.papers.registry import register
from jaxflow.papers.sheen2024.diagonal_flows import DIAGONAL, LOG_TIMES, OMEGAS
from jaxflow.papers.statement import Statement, largest
from jaxflow.papers.table import Table
from jaxflow.papers.verdicts import Rate, common_rate
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
# Differences that rounding made zero are drawn at rounding.
ROUNDING = 1e-17
# Earlier than this log t there is nothing to tell apart, and a logarithmic axis has no place for it.
FIRST = 0.5


def followed(flows: Table, values: np.ndarray) -> np.ndarray:
    """Values of the flows that reached their ends; of the others nothing is known."""
    return np.where(flows.ok, values, np.nan)


def growth(sizes: np.ndarray, log_times: np.ndarray) -> np.ndarray:
    r"""$d\log\|\beta\|/d\log\log t$ over the last decade of log t: 1 where ‖β‖ grows like log t, 0 where it stays."""
    first = int(np.argmin(np.abs(log_times - log_times[-1] / 10.0)))
    span = np.log(log_times[-1] / log_times[first])
    return np.log(sizes[..., -1] / sizes[..., first]) / span


def _growth(numbers: Table) -> np.ndarray:
    flows = numbers.flows
    return growth(np.where(np.asarray(flows.ok)[..., None], flows.size, 1.0), LOG_TIMES)


def _growth_rate(numbers: Table, known: np.ndarray) -> Rate | None:
    return common_rate(_growth(numbers)[known], 1.0, bias=GROWTH, law="‖β‖ against log t")


EQUAL_FLOWS = Statement[Table](
    source="Lemma 4.1",
    says="The dynamics of β and w are equivalent, i.e., β(t) = w(t) for all t ≥ 0: (ξ_k, ξ_q) and (w_+, w_-) from (5), "
    "at 25 times up to log t = 1e6.",
    residual=lambda n: followed(n.flows, np.max(n.flows.apart, axis=-1)),
    bound=EQUAL,
    unit="|β − w| / |β|, both largest entries",
)

INTEGRAL_FORM = Statement[Table](
    source="Lemma A.1",
    says="For all t ≥ 0, β(t) = ω₀² ⊙ sinh(Bφ(t)).  (19)  With φ carried as an integral along the path to log t = 1e6.",
    residual=lambda n: followed(n.flows, np.max(n.flows.identity, axis=-1)),
    bound=IDENTITY,
    unit="|β − ω₀² sinh(Bφ)| / |β|, both largest entries",
)

DISPLAY = Statement[Table](
    source="Lemma A.1",
    says="β̇(t) = (2/n) √(β² + ω₀⁴) ⊙ Σ −exp(−γᵀσ)(Σγ)_l B_il, its second display, at 25 times up to log t = 1e6.",
    residual=lambda n: followed(n.flows, np.max(n.flows.display, axis=-1)),
    bound=IDENTITY,
    unit="|difference| / |β̇|, both largest entries",
)

GROWING = Statement[Table](
    source="Lemma 4.2",
    says="‖β(t)‖ → ∞ under Assumption 2, where the ℓ1-SVM is feasible (like log t).",
    inside=lambda n: np.asarray(n.flows.diagonal > 0),
    residual=lambda n: followed(n.flows, np.maximum(1.0 - _growth(n), 0.0)),
    bound=1.0 - SLOW,
    unit="1 − the exponent of log t, or 0 where that is above 1",
    limit=True,
    rate=_growth_rate,
)


def notes(numbers: Table) -> list[str]:
    """What the table does not say."""
    flows = numbers.flows
    return [
        f"ξ_k² − ξ_q² is conserved to {largest(flows.conserved[flows.ok]):.1e} of ‖β‖ + ω₀². Distances are relative to "
        "the largest entry of β: β(0) = 0, and entries off the support stay small.",
    ]


def draw(numbers: Table) -> Any:
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
    notes=notes,
    draw=draw,
)
