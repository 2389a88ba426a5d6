r"""`reproduce sheen2024 multipliers`: KKT residuals over log t of averaged (A.5) and of instantaneous multipliers."""

from typing import Any

import numpy as np

from jaxflow.papers.drawing import dress, quantile_band
from jaxflow.papers.experiment import Again, Draw, Statement, Table, common_rate, largest, register
from jaxflow.papers.independent import best_rows, flow, tokens_of
from jaxflow.papers.sheen2024 import diagonal_flows
from jaxflow.papers.sheen2024.diagonal_flows import DIAGONAL, FIRST, LOG_TIMES, OMEGAS, SHAPE, hypotheses_of, inside_of
from jaxflow.plots import COLORS, CURVES, new_figure

# The starts of the figure, of which the first is that of the other statements.
SHOWN = (0, 2)
# A certified program.
CERTIFIED = 1e-8
# What an instantaneous certificate reaches where the slack of the dual allows it.
INSTANT = 1e-5
# Active constraints differ by logarithms of their multipliers' ratios, some 40 units at most, of μ = 1e6.
ACTIVE = 1e-4
# On the support (Bλ)_j = (ln μ + ln(2β̂_j/ω₀²) + O(1/μ²)) / ln μ, with β̂_j settled to a few percent at the earlier time.
LAW = 0.05
# A product that is to tend to zero, at log t = 1e6 over that at 1e5: less than one by more than rounding.
FALLS = 1.0 - 1e-9


def exponents_between(values: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """Minus d log value / d log clock between the fourth last time and the last, a decade; NaN for none."""
    first, last, span = values[..., -4], values[..., -1], np.log(clock[..., -1] / clock[..., -4])
    usable = (first > 0) & (last > 0) & (np.abs(span) > 0)
    ratio = np.divide(last, first, out=np.ones_like(last), where=usable)
    return np.where(usable, -np.log(ratio) / np.where(usable, span, 1.0), np.nan)


def averaged(row: int) -> Statement[Table]:
    """(C1) from one start: the residual is its law, which tends to 0, and falls with it."""
    return _statement(
        row,
        source="App. A.5 (C1)",
        says="The averaged multipliers λ = φ/ln μ approach KKT, ε(t) → 0: at log t = 1e6 against |ln(2β̂_j/ω₀²)|/ln μ",
        value=lambda flows: np.abs(flows.stationarity[:, -1] / flows.predicted[:, -1] - 1.0),
        bound=(LAW, "residual over |ln(2β̂_j/ω₀²)|/ln μ, minus 1"),
        rate=lambda flows, known: common_rate(
            -exponents_between(flows.stationarity[known][:, -4:], flows.predicted[known][:, -4:]),
            1.0,
            bias=LAW,
            law="the residual against |ln(2β̂_j/ω₀²)|/ln μ",
        ),
    )


def slackness(row: int) -> Statement[Table]:
    """(C3) from one start: the products fall, by a power of log log t."""
    clock = np.log(np.maximum(LOG_TIMES, 1.5))
    return _statement(
        row,
        source="App. A.5 (C3)",
        says="λ_il (1 − β̂ᵀB_il) → 0, with the averaged multipliers",
        value=lambda flows: flows.slackness[:, -1] / flows.slackness[:, -4],
        bound=(FALLS, "the largest product at log t = 1e6 over that at 1e5"),
        rate=lambda flows, known: common_rate(
            exponents_between(flows.slackness[known], clock), None, law="the largest product against log log t"
        ),
        # It has not fallen at all.
        late=1.0,
    )


def certified_now(row: int) -> Statement[Table]:
    """Theorem 4.1 from one start, by what the flow's own multipliers and velocity certify at log t = 1e6."""
    return _statement(
        row,
        source="Theorem 4.1",
        says="β̂ tends to a KKT point of the ℓ1-SVM: by the flow's instantaneous multipliers and velocity at "
        "log t = 1e6",
        # A program that is not certified decides nothing.
        value=lambda flows: np.where(flows.program_gap <= CERTIFIED, flows.gap[:, -1], np.nan),
        bound=(INSTANT, "duality gap"),
        rate=lambda flows, known: common_rate(
            exponents_between(np.maximum(flows.gap[known], 1e-300), LOG_TIMES), None, law="duality gap against log t"
        ),
        # Twice the optimum.
        late=1.0,
    )


def _statement(row: int, *, value: Any, says: str, **more: Any) -> Statement[Table]:
    """Of a limit, on the instances inside Theorem 4.1; those not followed, or whose program is open, are undecided."""
    return Statement(
        says=f"{says} (ω₀ = {OMEGAS[row]:g}).",
        of=lambda numbers: numbers.flows.at(row),
        inside=hypotheses_of,
        residual=lambda flows: np.where(inside_of(flows), value(flows), np.nan),
        **more,
    )


def factor(*, printed: bool) -> Statement[Table]:
    r"""The slope of $\ln\mu\,(B\lambda)_j$ against $\ln\mu$ on the largest entry, which must tend to one."""

    def slopes(flows: Table) -> np.ndarray:
        mu = np.log(np.maximum(flows.margin[:, [-4, -1]], 1.0))
        place = np.argmax(np.abs(flows.beta[:, -1]), axis=-1)
        entry = np.take_along_axis(flows.averaged, place[:, None, None], axis=2)[:, [-4, -1], 0] * mu
        span = np.where(inside_of(flows), mu[:, 1] - mu[:, 0], np.nan)
        return np.abs(entry[:, 1] - entry[:, 0]) / span * (2.0 / SHAPE[0] if printed else 1.0)

    formula = "λ = 2φ/(n ln μ), as recalled in A.7" if printed else "λ = φ/ln μ, A.5"
    return _statement(
        SHOWN[0],
        source="App. A.7" if printed else "App. A.5",
        says=f"{formula} (φ has the factor 2/n already): (Bλ)_j → ±1 on the support, by the slope of ln μ (Bλ)_j "
        "against ln μ",
        value=lambda flows: np.abs(slopes(flows) - 1.0),
        bound=(LAW, "|slope − 1|"),
        rate=lambda flows, known: common_rate(slopes(flows)[known], 1.0, bias=LAW, law="ln μ (Bλ)_j against ln μ"),
        again=Again("LSODA of SciPy", _printed_again, 1e-6) if printed else None,
    )


def _printed_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    r"""From β alone: by (19) $\beta=\omega_0^{\odot2}\sinh(B\phi)$."""
    key, setting = draw.instance("flows", at[0], SHOWN[0])
    data, head, omega = diagonal_flows.draw(setting, key)
    given, omega = tokens_of(data, head), np.asarray(omega)
    start = np.stack([np.sqrt(2.0) * omega, np.zeros_like(omega)])
    betas = np.prod(flow(given, start, *LOG_TIMES[[-4, -1]], kind="diagonal", loss="exponential"), axis=1)
    rows = np.diagonal(best_rows(given), axis1=1, axis2=2)
    mu = np.log([np.min(rows @ beta) for beta in betas])
    first, last = np.arcsinh(betas / omega**2)[:, np.argmax(np.abs(betas[-1]))]
    return abs(abs(last - first) / (mu[1] - mu[0]) * 2.0 / SHAPE[0] - 1.0)


def notes(numbers: Table) -> list[str]:
    """What the table does not say."""
    certified = largest(numbers.flows.program_gap[inside_of(numbers.flows)])
    return [f"Averaged residuals are undefined while μ ≤ 1. Programs inside are certified to {certified:.1e}."]


def draw(numbers: Table) -> Any:
    r"""KKT residuals of averaged (A.5) and instantaneous multipliers, and both for one instance."""
    figure, axes = new_figure(3, width=12.5)
    late = LOG_TIMES >= FIRST
    times = LOG_TIMES[late]
    for color, row in zip(CURVES, SHOWN, strict=False):
        flows = numbers.flows.at(row)
        kept = inside_of(flows)
        if not kept.any():
            continue
        for axis, values, line, symbol in (
            (axes[0], flows.stationarity, "-", "(C1)"),
            (axes[0], flows.slackness, ":", "(C3)"),
            (axes[1], flows.gap, "-", "gap"),
        ):
            some = values[kept][:, late]
            some = np.where(np.isfinite(some) & (some > 0), some, np.nan)
            seen = ~np.isnan(some).all(axis=0)
            text = rf"{symbol}, $\omega_0={OMEGAS[row]:g}$"
            axis.plot(times[seen], np.nanmedian(some[:, seen], axis=0), line, color=color, label=text)
            if line == "-":
                quantile_band(axis, times[seen], some[:, seen], color, 0.12)
        expected = flows.predicted[kept][:, late]
        seen = np.isfinite(expected).all(axis=0)
        axes[0].plot(times[seen], np.median(expected[:, seen], axis=0), "--", color=COLORS["program"], linewidth=0.8)
    axes[0].plot([], [], "--", color=COLORS["program"], linewidth=0.8, label=r"$|\ln(2\hat\beta_j/\omega_0^2)|/\ln\mu$")
    dress(axes[0], r"(a) averaged: $\lambda_{il}(t)=\phi_{il}(t)/\ln\mu(t)$", y="KKT residual", log="y")
    axes[1].axhline(INSTANT, color=COLORS["faint"], linewidth=0.8)
    dress(axes[1], r"(b) instantaneous: $\lambda_{il}\propto p_{il}(t)$", y="duality gap", log="y")
    # The instance that is drawn whole: the first inside the hypotheses for both starts, else the first.
    shown = int(np.argmax(np.all(inside_of(numbers.flows)[list(SHOWN)], axis=0)))
    drawn = (
        ("averaged", numbers.flows.averaged, COLORS["factored"], "-"),
        ("instantaneous", numbers.flows.instantaneous, COLORS["combined"], "--"),
    )
    for name, values, color, line in drawn:
        lines = axes[2].plot(times, values[SHOWN[0], shown][late], line, color=color, linewidth=1.0)
        lines[0].set_label(name)
    for level in (-1.0, 1.0):
        axes[2].axhline(level, color=COLORS["faint"], linewidth=0.8)
    dress(axes[2], rf"(c) one instance, $\omega_0={OMEGAS[SHOWN[0]]:g}$", y=r"$(B\lambda)_j$", ylim=(-3.0, 3.0))
    for axis in axes:
        dress(axis, x=r"$\log t$", log="x", legend=7)
    figure.suptitle(
        "median (bands: 10% to 90%) over the instances inside the hypotheses of Theorem 4.1, of "
        f"{numbers.flows.ok.shape[1]} for each start",
        fontsize=9,
    )
    return figure


register(
    DIAGONAL,
    "multipliers",
    title="KKT residuals of the proof's averaged multipliers and of the instantaneous ones, to log t = 1e6",
    statements=[make(row) for row in SHOWN for make in (averaged, slackness, certified_now)],
    notes=notes,
    draw=draw,
)
