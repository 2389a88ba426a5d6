"""`reproduce tarzanagh2023 factored`: §9's open question of the (K, Q) parametrisation, counted."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxflow._core import Outcome
from jaxflow.papers.drawing import dress, look_of_errors, share_and_error
from jaxflow.papers.experiment import Dataset, Mask, Statement, Studies, Sweep, Table, register
from jaxflow.papers.tarzanagh2023.percent import SCORE_GAP, listed
from jaxflow.plots import new_figure
from jaxflow.study import Study, TokenSelection

FULL = ((3, 3), (5, 5), (8, 8))
# Instances for each pair (d, m): dimension of tokens, columns of K and Q; and how many are followed at a time.
SIZES = {
    "quick": (24, ((5, 5), (5, 2)), 24),
    "paper": (10_000, FULL, 250),
    "large": (1_000_000, (*FULL, (3, 2), (5, 2)), 250),
}
GAP = TokenSelection.gap
# The two numbers are sums of a few hundred rounded products of order one.
ROUNDING = 1e-12

GROUPS = {
    "minimises the nuclear norm": (
        Outcome.globally_optimal,
        Outcome.locally_optimal,
        Outcome.not_locally_optimal,
        Outcome.ambiguous,
    ),
    "another direction": (Outcome.prediction_contradicted,),
    "finite stationary point": (Outcome.finite_stationary_point,),
    "open": (Outcome.undecided, Outcome.infeasible_program, Outcome.failed),
}
NAMES = tuple(GROUPS)
MINIMISES, ANOTHER, POINT, OPEN = NAMES
# Of all but the first.
COLORS = ("#D55E00", "#666666", "#0072B2")
# Results of `TokenSelection`: trial k of a pair is `study_of(...).replay(trial=k, ...)`.
COLUMNS = ("outcome", "excess", "flow_gap", "program_gap")


def among(numbers: Table, *groups: str) -> Mask:
    """The flows that ended in one of these of `GROUPS`: `(p, b)`."""
    return np.isin(numbers.ends.outcome, [int(code) for group in groups for code in GROUPS[group]])


def study_of(scale: str, seed: int, d: int, m: int) -> Study:
    """The study of one pair. (d, d) and (d, m) have the same data."""
    trials, _, block = SIZES[scale]
    return Study(
        TokenSelection(),
        {"n": [5], "T": [5], "d": [d], "score_gap": [SCORE_GAP]},
        {"parametrization": ["KQ"], "m": [m]},
        trials=trials,
        seed=seed,
        block=block,
    )


def _pairs(scale: str, seed: int) -> Table:
    """The pairs (`d`, `m`), `(p,)`, and the seed of the instances."""
    d, m = np.array(SIZES[scale][1]).T
    return Table(d=d, m=m, seed=np.asarray(seed))


FACTORED = Dataset(
    "tarzanagh2023",
    "factored",
    {
        "pairs": Sweep(_pairs, lambda seed: seed),
        "ends": Studies(
            COLUMNS, lambda scale, seed: {f"d={d}, m={m}": study_of(scale, seed, d, m) for d, m in SIZES[scale][1]}
        ),
    },
)


def _open_question(which: str, of: Callable[[Table], Mask]) -> Statement[Table]:
    def asked(numbers: Table, *groups: str) -> Mask:
        return among(numbers, *groups) & of(numbers.pairs)[:, None]

    return Statement(
        source=f"Section 9, (K, Q) parameterization, {which}",
        says="We find it remarkable that regularization path analysis was able to predict the implicit bias of "
        "gradient descent (read here as: the flow's own limit minimises the nuclear norm globally, for the tokens it "
        "selects).",
        inside=lambda n: asked(n, MINIMISES, ANOTHER, OPEN),
        residual=lambda n: np.where(among(n, OPEN), np.nan, among(n, ANOTHER)),
    )


CONFIRMED = Statement[Table](
    source="Certificates of this library",
    says="A gap that a flow claims is confirmed by a program that is solved from the data alone.",
    # Flows whose own multipliers certify their direction.
    inside=lambda n: np.isfinite(n.ends.flow_gap) & (n.ends.flow_gap <= GAP),
    # The flow's dual bounds the optimum: what it claims is at least its true excess, by a solver that never saw it.
    residual=lambda n: ~(n.ends.excess <= n.ends.flow_gap + n.ends.program_gap + ROUNDING),
)
FULL_RANK = _open_question("m = d", lambda pairs: pairs.m >= pairs.d)
LOW_RANK = _open_question("m < d", lambda pairs: pairs.m < pairs.d)


def _statements(numbers: Table) -> list[Statement[Table]]:
    fewer = np.any(numbers.pairs.m < numbers.pairs.d)
    return [FULL_RANK, *([LOW_RANK] if fewer else []), CONFIRMED]


def _notes(numbers: Table) -> list[str]:
    pairs, shown = numbers.pairs, (ANOTHER, OPEN)
    return [
        f"Replay: `{__name__}.study_of(scale, {int(pairs.seed)}, d, m).replay(trial=k)`.",
        *(
            f"{name.capitalize()}, d={d}, m={m}: trials {listed(row)}."
            for name in shown
            for d, m, row in zip(pairs.d, pairs.m, among(numbers, name), strict=True)
            if row.any()
        ),
    ]


def draw(numbers: Table) -> Any:
    """What the flows of each pair do that do not minimise the nuclear norm, on a logarithmic axis: nearly all do."""
    figure, (axis,) = new_figure(1, width=6.0)
    places, total = np.arange(len(numbers.pairs.d)), np.full(len(numbers.pairs.d), numbers.ends.outcome.shape[1])
    for k, name in enumerate((ANOTHER, POINT, OPEN)):
        count = among(numbers, name).sum(axis=-1)
        share, error = share_and_error(count, total)
        at = places + 0.2 * (k - 1)
        some = count > 0
        look = {"color": COLORS[k], "linestyle": "none", "markersize": 6.0}
        axis.errorbar(at[some], share[some], yerr=error[:, some], **look_of_errors())
        axis.plot(at[some], share[some], marker="os^"[k], label=name, **look)
        # Of none that was seen: the end of the interval.
        axis.plot(at[~some], error[1, ~some], marker="v", fillstyle="none", **look)
    axis.plot([], [], marker="v", color="black", fillstyle="none", linestyle="none", label="none seen: at most")
    dress(
        axis, f"limits of $(K,Q)$, $n=T=5$, {total[0]:,} flows each", x="$d$, $m$", y="flows (%), Wilson 95%", log="y"
    )
    axis.set_xticks(places, [f"{d}, {m}" for d, m in zip(numbers.pairs.d, numbers.pairs.m, strict=True)])
    axis.set_xlim(-0.6, len(places) - 0.4)
    # Above the marks.
    axis.set_ylim(top=30.0 * axis.get_ylim()[1])
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
    return figure


# Theorem 2 says where the *regularisation path* of W = K Qᵀ goes: to a solution of (Att-SVM⋆), least nuclear norm.
# Whether the flow goes there is left open. n = T = 5, everything uniform on the unit sphere, score gap 0.1, K and Q
# normal of the published size, with m columns. Each flow is followed until its own multipliers certify its direction;
# the excess is the nuclear norm of that direction at margin one, over the least one for the tokens that it selected,
# which a solver finds from the data alone, less one. For m < d the program is that of rank m, whose lower bound is the
# convex one: where it is not tight nothing is certified, and the instance stays open with its excess over that bound.
# Sizes are ours.
register(
    FACTORED,
    title="Section 9's open question of (K, Q): does the flow's own limit minimise the nuclear norm?",
    statements=_statements,
    notes=_notes,
    draw=draw,
)
