"""`reproduce sheen2024 alignment`: alignment along the flow of (K, Q), and the exact limit of Theorem 5.1."""

from typing import Any

import jax
import numpy as np

from jaxflow.margin import ProgramResult
from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Statement, Table, largest, median, register
from jaxflow.papers.sheen2024.aligned_flows import ALIGNED, LOG_TIMES, NARROW, SHAPE, STARTS, hypotheses_of
from jaxflow.papers.sheen2024.diagonal_flows import FIRST, ROUNDING
from jaxflow.plots import COLORS, CURVES, new_figure

# Rounding of some thousand steps, relative to ‖K‖.
STRAIGHT = 1e-10
# The velocity's margins agree to 1/(log t)^2.
EXACT = 1e-8
# Programs and lifted solutions are certified to rounding times their condition.
CERTIFIED = 1e-8
# Attention that is one to the rounding of its sum.
SEPARATED = 1e-12
# Two optima with the same objective that are farther apart than this are two.
DIFFERENT = 1e-3
# A sequence without a column keeps its start, attention one in L, until rounding has grown like e^(pt).
UNTRAINED = 1e-6
EARLY = 1.0


def of_theorem_5_1(numbers: Table) -> Table:
    """The flows from the start (5), on data of all three kinds, one after the other, `(3 b,)`."""
    return jax.tree.map(lambda first, others: np.concatenate([first, *others]), numbers.starts.at(0), numbers.shapes)


def _last(flows: Table, values: np.ndarray) -> np.ndarray:
    return np.where(flows.ok, np.abs(values[..., -1]), np.nan)


ALIGNMENT = Statement[Table](
    source="Lemma 5.1",
    says="For all t ≥ 0, K(t) = U_K Λ_K(t) Vᵀ and Q(t) = U_Q Λ_Q(t) Vᵀ, from aligned starts (unbalanced and balanced), "
    "at 25 times up to log t = 1e6.",
    inside=lambda n: np.concatenate([hypotheses_of(of_theorem_5_1(n)), hypotheses_of(n.starts.at(1))]),
    residual=lambda n: np.concatenate(
        [np.where(flows.ok, np.max(flows.alignment, -1), np.nan) for flows in (of_theorem_5_1(n), n.starts.at(1))]
    ),
    bound=(STRAIGHT, "part off the diagonal / ‖K‖"),
)

INSIDE: Any = {"of": of_theorem_5_1, "inside": hypotheses_of}

LIMIT = Statement[Table](
    source="Theorem 5.1",
    says="The gradient flow limit Ŵ^∞ is a global optimal solution of (W⋆-SVM): the nuclear norm of the flow's "
    "direction (its velocity at margin one) at log t = 1e6 is that of the exact limit, Σ 1/((1−c_i)‖x_i‖‖z_i‖).",
    **INSIDE,
    residual=lambda flows: _last(flows, flows.oracle_excess),
    bound=(EXACT, "|norm / exact − 1|"),
)

SEPARATES = Statement[Table](
    source="Theorem 1.1",
    says="Gradient flow on (K, Q) at convergence perfectly separates the optimal token from non-optimal ones for each "
    "input sequence: the least attention on an optimal token at log t = 1e6.",
    **INSIDE,
    residual=lambda flows: _last(flows, 1.0 - flows.attention),
    bound=(SEPARATED, "1 − least attention"),
)

EXACT_LIMIT = Statement[Table](
    source="Theorem 5.1",
    says="The exact limit is a global optimal solution of (W⋆-SVM): its nuclear norm against the certified optimum.",
    **INSIDE,
    residual=lambda flows: np.where(flows.result == ProgramResult.optimal.value, np.abs(flows.oracle), np.nan),
    bound=(CERTIFIED, "|exact / optimum − 1|"),
)

LIFTING = Statement[Table](
    source="App. A.7 (42)–(45)",
    says="A solution of the reduced ℓ1 program (42), lifted with its multipliers by (44), solves (W⋆-SVM).",
    **INSIDE,
    residual=lambda flows: np.maximum(flows.lifted_gap, flows.lifted_residual),
    bound=(CERTIFIED, "duality gap, residual of (44)"),
)

NOT_UNIQUE = Statement[Table](
    source="Theorem 5.1",
    says='"A global optimal solution": the optimum of (W⋆-SVM) need not be unique (pairs orthogonal to all optimal '
    "tokens).",
    inside=lambda n: hypotheses_of(n.shapes.at(1)),
    # Another matrix that is the same, or has another norm, shows nothing of it.
    residual=lambda n: np.where(n.others.apart[0] > DIFFERENT, np.abs(n.others.excess[0]), np.inf),
    bound=(CERTIFIED, "difference of the two objectives"),
)

TOO_NARROW = Statement[Table](
    source="Theorem 5.1",
    says=f"d_e ≥ d is assumed; with d_e = {NARROW} < d = {SHAPE[2]} a sequence with π(i) > d_e never trains: its "
    "attention stays at 1/L.",
    of=lambda n: n.starts.at(3),
    inside=lambda flows: flows.ok,
    residual=lambda flows: np.max(np.abs(flows.attention[:, LOG_TIMES <= EARLY] - 1.0 / SHAPE[1]), -1, initial=0.0),
    bound=(UNTRAINED, "change of attention where π(i) > d_e"),
    beyond=True,
)


def notes(numbers: Table) -> list[str]:
    """How far starts outside of the theorem are from the optimum."""
    found = []
    for row in (1, 2):
        flows = numbers.starts.at(row)
        last = flows.velocity_excess[hypotheses_of(flows) & flows.ok, -1]
        found.append(
            f"Outside the theorem, {STARTS[row]} start: on {last.size} instances the velocity's nuclear norm is above "
            f"the optimum by {median(last):.1e} (median; largest {largest(last):.1e}) at log t = 1e6."
        )
    return [
        *found,
        "The alignment error of a misaligned start is measured in the frame of the data; V is arbitrary there.",
    ]


def draw(numbers: Table) -> Any:
    r"""Alignment error and distance from the exact limit for three starts; attention where $d_e<d$."""
    figure, axes = new_figure(3, width=12.5)
    late = LOG_TIMES >= FIRST
    times = LOG_TIMES[late]
    for color, name, row in zip(CURVES, STARTS, range(len(STARTS)), strict=False):
        flows = numbers.starts.at(row)
        if not flows.ok.any():
            continue
        values = np.maximum(flows.alignment[flows.ok][:, late], ROUNDING)
        axes[0].plot(times, values.max(axis=0), color=color, label=name)
        for excess, line, symbol in ((flows.weights_excess, "-", "$W$"), (flows.velocity_excess, ":", r"$\dot W$")):
            values = excess[flows.ok][:, late]
            values = np.where(np.isfinite(values), np.maximum(np.abs(values), ROUNDING), np.nan)
            seen = ~np.isnan(values).all(axis=0)
            top = np.nanmax(values[:, seen], axis=0)
            axes[1].plot(times[seen], top, line, color=color, label=f"{symbol}, {name}")
    axes[0].axhline(STRAIGHT, color=COLORS["faint"], linewidth=0.8)
    dress(axes[0], "(a) Lemma 5.1: alignment error", y=r"$\|U_K^\top KV-\mathrm{diag}\|_F\,/\,\|K\|_F$")
    axes[1].axhline(EXACT, color=COLORS["faint"], linewidth=0.8)
    dress(axes[1], "(b) Theorem 5.1: distance from the optimum", y=r"$\|\cdot\|_*\,/\,(\mu\,\mathrm{opt})-1$")
    for axis in axes[:2]:
        dress(axis, x=r"$\log t$", log="xy", legend=7)
    for values in numbers.starts.at(3).attention:
        axes[2].plot(LOG_TIMES, values, color=COLORS["factored"], linewidth=0.9, alpha=0.6)
    title = rf"(c) $d_e={NARROW}<d={SHAPE[2]}$: a saddle, left by rounding"
    axes[2].set_xlim(LOG_TIMES[0], 12.0)
    dress(axes[2], title, r"$\log t$", r"least attention on $\mathrm{opt}(i)$", ylim=(-0.02, 1.05))
    figure.suptitle(f"largest over {numbers.starts.ok.shape[1]} instances for each start", fontsize=9)
    return figure


register(
    ALIGNED,
    "alignment",
    title="Lemma 5.1 and Theorem 5.1: alignment and the way to the exact limit, from three starts, to log t = 1e6",
    statements=[ALIGNMENT, LIMIT, TOO_NARROW],
    notes=notes,
    draw=draw,
)

register(
    ALIGNED,
    "general",
    title="Lemma 5.1, Theorem 5.1, (42), (44), (45)",
    statements=[ALIGNMENT, LIMIT, EXACT_LIMIT, LIFTING, NOT_UNIQUE, TOO_NARROW, SEPARATES],
)
