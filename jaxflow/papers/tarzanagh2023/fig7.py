"""Figure 7: W is biased to the Frobenius-norm program, (K, Q) to the nuclear-norm program."""

from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.drawing import dress, quantile_band
from jaxflow.papers.experiment import Mask, Statement, Table, common_rate, register
from jaxflow.papers.tarzanagh2023.bias_runs import FIGURE7, among, both, rates, runs_of
from jaxflow.papers.tarzanagh2023.programs import NAMES, OWN, PROGRAMS
from jaxflow.papers.tarzanagh2023.protocol import ALIGNED
from jaxflow.plots.style import COLORS, ROUNDING, SYMBOLS, new_figure

# 1 − corr below this is a correlation of 1 to ten digits, past every rate that matters.
REACHED = 1e-10
# A share of attention that differs from 1 by less than this is 1 to rounding of the sum over T tokens.
PROBABILITY_ONE = 1e-12

LOCAL = (Outcome.globally_optimal, Outcome.locally_optimal)
# Weights with these outcomes tend to a direction; what was not followed to its end may have selected any tokens.
DIRECTIONS, OPEN = (*LOCAL, Outcome.not_locally_optimal), (Outcome.undecided, Outcome.failed)

SOURCE = "Section 4.2, Figure 7"

SELECTED = Statement[Table](
    source=SOURCE,
    says="Both scenarios result in probability 1, which indicates that attention weights succeed in selecting one "
    "token per input.",
    residual=lambda n: np.stack([np.where(among(runs, OPEN), np.nan, 1.0 - runs.smallest) for runs in both(n)]),
    bound=PROBABILITY_ONE,
)


def _going(runs: Table) -> Mask:
    """Those that are still on their way."""
    return among(runs, LOCAL) & (runs.last > REACHED)


def _converges(kind: str, where: str, name: str) -> Statement[Table]:
    return Statement(
        source=f"{SOURCE} {where}",
        says=f"{name} ultimately reaches a 1 correlation with the solution of {PROGRAMS[OWN[kind]]}.",
        of=lambda n: runs_of(n, kind),
        inside=lambda runs: among(runs, LOCAL + OPEN),
        residual=lambda runs: np.where(among(runs, LOCAL), runs.last, np.nan),
        bound=(ALIGNED, "1 − corr"),
        # What is far from a correlation of 1 is late, unless it points away.
        late=1.0,
        limit=lambda runs: bool(_going(runs).any()),
        rate=lambda runs, known: common_rate(
            rates(runs)[_going(runs)], None, law="objective above the optimum against log t"
        ),
    )


BIASED = Statement[Table](
    source=SOURCE,
    says="These demonstrate the Frobenius norm bias of W(k) and the nuclear norm bias of K(k)Q(k)^T.",
    inside=lambda n: np.stack([among(runs, DIRECTIONS + OPEN) for runs in both(n)]),
    residual=lambda n: np.stack([np.where(among(runs, OPEN), np.nan, ~(runs.last < runs.other)) for runs in both(n)]),
)

# Where the published ridge on the gradient norms of K and Q, 2.22e-16, overtakes the gradients: e^-36.
RIDGE_NOTE = (
    "The published descent on (K, Q) adds 2.22e-16 to the gradient norms by which it divides. From about log t = 36 on "
    "gradients are smaller than that, and it is plain descent with a step of 0.1 / 2.22e-16, far beyond the stability "
    "limit, no longer an approximation of the flow: that is where its curve leaves the flow's."
)


def _notes(numbers: Table) -> list[str]:
    notes = []
    for name, runs in zip(NAMES.values(), both(numbers), strict=True):
        directions = among(runs, DIRECTIONS)
        notes.append(
            f"{name}: {directions.sum()} of {directions.size} flows tend to a direction; the published descent selects "
            f"the tokens of {np.sum(directions & runs.agrees)} of these."
        )
    return [*notes, RIDGE_NOTE]


def draw_convergence(numbers: Table) -> Any:
    """Three panels against log t: the largest attention, and 1 − corr with the solutions of (Att-SVM) and (Att-SVM*).

    Means over the instances whose weights tend to a direction, by the flow and by the published descent.
    """
    figure, axes = new_figure(3)
    titles = (
        ("(a) tokens selected", r"mean of $\max_t\ \mathbb{S}(X_i\tilde{W}z_i)_t$"),
        ("(b) Frobenius-norm (Att-SVM)", r"$1-\mathrm{corr}(\tilde{W},\,W^{mm}_{\alpha})$"),
        (r"(c) nuclear-norm (Att-SVM$_\star$)", r"$1-\mathrm{corr}(\tilde{W},\,W^{mm}_{\star,\alpha})$"),
    )
    for place, (axis, (title, label)) in enumerate(zip(axes, titles, strict=True)):
        dress(axis, title, r"$\log t$", label, log="xy" if place else "x")
        for kind, runs in zip(NAMES, both(numbers), strict=True):
            kept, times, color = among(runs, DIRECTIONS), runs.log_time, COLORS[kind]
            if not kept.any():
                continue
            values, steps = runs.attention[kept], runs.descent_attention[kept]
            if place:
                values, steps = runs.distance[kept, place - 1], runs.descent_distance[kept, place - 1]
                values = np.maximum(values, ROUNDING)
                quantile_band(axis, times, values, color)
            axis.plot(times, values.mean(0), color=color, label=f"flow of {SYMBOLS[kind]}")
            # Steps are placed where the flow would be after the same lengths: the median over the instances.
            when, steps = np.median(runs.descent_log_time[kept], axis=0), steps.mean(0)
            shown, label = when >= times[0], f"descent on {SYMBOLS[kind]}"
            axis.plot(when[shown], steps[shown], "--", color=color, linewidth=1.2, label=label)
            axis.plot(when[-1:], steps[-1:], "o", color=color, markersize=4)
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    (n, T, d), (W, KQ) = numbers.axes.shape, (int(among(runs, DIRECTIONS).sum()) for runs in both(numbers))
    figure.suptitle(
        rf"$n={n}$, $T={T}$, $d={d}$; mean over {W} ($W$) and {KQ} ($(K,Q)$) of "
        rf"{numbers.combined.outcome.shape[1]} instances, bands 10% to 90%; "
        "dashed: the published descent, ending at the dot",
        fontsize=9,
    )
    return figure


# n = 6, T = 8, d = 10, everything uniform on the unit sphere. The flow is drawn against log t; the published protocol
# (normalised descent, η = 0.1, 2,000 steps) stands beside it.
register(
    FIGURE7,
    title="Local convergence of W and (K, Q) to their max-margin programs",
    statements=[
        SELECTED,
        _converges("combined", "(b), Theorem 7", "W"),
        _converges("factored", "(c), Theorem 2", "K Q^T"),
        BIASED,
    ],
    notes=_notes,
    draw=draw_convergence,
)
