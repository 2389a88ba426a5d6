"""Figure 5: convergence of W and (K, Q) against d, and how often all tokens are support vectors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxflow._core import Code, Outcome
from jaxflow.data import optimal_tokens
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import token_scores
from jaxflow.papers.registry import register
from jaxflow.papers.statement import Mask, Statement
from jaxflow.papers.tarzanagh2023.percent import (
    GLOBAL,
    OPEN,
    Judged,
    PercentNumbers,
    Series,
    Size,
    SupportedEnds,
    convergence,
    convergence_bars,
    dataset_of,
    interval,
    judged,
    notes_of,
    percent,
    rising,
    tally,
    where,
)
from jaxflow.papers.tarzanagh2023.second_pass import SelectionAnd
from jaxflow.plots import draw_percentage_bars
from jaxflow.study import TokenSelection

# Margins of a program solved to a gap of 1e-12 (Frobenius) or polished to rounding (nuclear) are 1 to about
# 1e-9; what is not a support vector is further from 1 than this but in rare cases, which the notes count.
SUPPORT = 1e-6
CLOSE = 1e-4

# "declare that problem satisfies Assumption B.1, if the average margin is below 1.1" (Section 4.2).
PUBLISHED_AVERAGE = 1.1

# The program whose solution each parametrisation is biased to.
NORMS = {"W": "frobenius", "KQ": "nuclear"}

SIZES = {
    # Two values that share what is compiled.
    "quick": Size(trials=100, d=(5, 8)),
    "paper": Size(trials=500, d=(2, 3, 4, 5, 6, 8, 10, 15, 20)),
    "large": Size(trials=100_000, d=(2, 3, 4, 5, 6, 8, 10, 15, 20)),
}


def margins(factors: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    r"""The margins of the program of the optimal tokens, of the instances of these keys.

    Assumption B.1 is about $W^{mm}$, the solution of (Att-SVM) for $(\mathrm{opt}_i)$: all of
    $(x_{i\mathrm{opt}_i}-x_{it})^\top W^{mm}z_i$ are 1. It is decided for the optimal tokens, whatever the flow
    selects: Frobenius norm for W, nuclear norm for (K, Q).
    """
    draw = jax.jit(jax.vmap(partial(TokenSelection().in_span, factors)))
    norm = NORMS[factors["parametrization"]]
    support: Any = _supports  # Pyright takes what is compiled for a method of a module
    return lambda keys: support(*draw(keys), norm)


@eqx.filter_jit
def _supports(risks: Any, models: Any, norm: str) -> dict[str, Any]:
    """Of a block; padded as they are followed, several d share what is compiled."""
    return eqx.filter_vmap(partial(_support, norm))(risks, models)


def _support(norm: str, risk: Any, model: Any) -> dict[str, Any]:
    """The program of the optimal tokens, and the margins of the others in its solution."""
    data = risk.data
    optimal = optimal_tokens(token_scores(data, model.head), data.visible)
    program = attention_svm(data, optimal, norm)
    solution = solve(program)
    margins, others = program.margins(solution.primal), program.active
    return {
        "optimal_program": Code(solution.result.value, ProgramResult),
        "mean_margin": jnp.mean(margins, where=others),
        "largest_margin": jnp.max(margins, where=others, initial=-jnp.inf),
    }


EXPERIMENT = SelectionAnd(more=f"{__name__}:margins")
FIGURE5 = dataset_of("fig5", f"{__name__}:FIGURE5", SIZES, SupportedEnds, EXPERIMENT)


def supported(numbers: PercentNumbers) -> Mask:
    """Instances that ran and satisfy Assumption B.1 as stated, of which only a solution has the margins."""
    return _solved(numbers) & (numbers.table("largest_margin") <= 1.0 + SUPPORT)


def _solved(numbers: PercentNumbers) -> Mask:
    ran = numbers.outcome != Outcome.not_run
    return ran & (numbers.table("optimal_program") == ProgramResult.optimal)


def assumption_counts(numbers: PercentNumbers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Instances with Assumption B.1 as stated, and by the published rule; and all that ran: `(s, p, k)` each."""
    published = _solved(numbers) & (numbers.table("mean_margin") < PUBLISHED_AVERAGE)
    return supported(numbers).sum(-1), published.sum(-1), (numbers.outcome != Outcome.not_run).sum(-1)


def _stated(numbers: PercentNumbers) -> list[Series]:
    exact, _, total = (table[0] for table in assumption_counts(numbers))
    return [(f"{name}: Assumption B.1", exact[p], total[p]) for p, name in enumerate(numbers.names)]


def _by_rule(numbers: PercentNumbers) -> list[Series]:
    _, published, total = (table[0] for table in assumption_counts(numbers))
    return [(f"{name}: average margin below 1.1", published[p], total[p]) for p, name in enumerate(numbers.names)]


def assumption_statements(parametrizations: Any) -> list[Statement[PercentNumbers]]:
    """Assumption B.1 in figure 5: its trend, its frequency beside that of global convergence, Theorem 3."""
    grows = "Assumption B.1 holds with higher probability (green bars) as d grows."
    less = "Assumption B.1 occurs less frequently than global convergence."
    ways = ((_stated, ""), (_by_rule, ", rule of the published bars"))
    return [
        *(
            judged(f"Section 4.2, Figure 5{more}", grows, lambda n, p=p, of=of: rising([of(n)[p]], n.grid.d))
            for of, more in ways
            for p in range(len(parametrizations))
        ),
        *(judged(f"Section 5.2, Figure 5{more}", less, partial(_less_frequent, of)) for of, more in ways),
        THEOREM3,
    ]


def _less_frequent(of: Callable[[PercentNumbers], list[Series]], numbers: PercentNumbers) -> list[Judged]:
    """Met where it is rarer than global convergence beyond the intervals for some d, and for none more frequent."""
    found, d = [], numbers.grid.d
    for (subject, count, total), often in zip(of(numbers), tally(numbers, GLOBAL)[0][0], strict=True):
        _, rare_low, rare_high = interval(count, total)
        _, low, high = interval(often, total)
        less, more = rare_high < low, rare_low > high
        text = f"{subject} less frequent beyond the intervals at {less.sum()} of {len(d)} values of d"
        if more.any():
            at = int(np.argmax(more))
            text += (
                f", more frequent at d={', '.join(str(x) for x in d[more])} (d={d[at]}: "
                f"{percent(count, total, at)} against {percent(often, total, at)})"
            )
        found.append(Judged(text, bool(np.any(total > 0)), bool(more.any()), bool(less.any())))
    return found


def _supported_W(numbers: PercentNumbers) -> Mask:
    combined = (numbers.grid.parametrization == "W")[None, :, None, None]
    return supported(numbers) & combined


def _theorem3_in_words(numbers: PercentNumbers, known: Mask) -> str:
    holds = _supported_W(numbers)
    against = holds & (numbers.outcome == Outcome.finite_stationary_point)
    listed = f" ({where(numbers, against)})" if against.any() else ""
    return (
        f"W: of {int(holds.sum()):,} instances with Assumption B.1, {int(against.sum())} flows end in a finite "
        f"stationary point{listed}; "
        f"{int(np.sum(holds & (numbers.outcome == Outcome.globally_optimal))):,} converge globally"
    )


# On the instances of W that satisfy Assumption B.1.
THEOREM3 = Statement[PercentNumbers](
    source="Theorem 3",
    says="There is no W with a vanishing gradient, and the norm of W(k) goes to infinity.",
    inside=_supported_W,
    residual=lambda n: np.where(np.isin(n.outcome, OPEN), np.nan, n.outcome == Outcome.finite_stationary_point),
    found=_theorem3_in_words,
)


def assumption_notes(numbers: PercentNumbers) -> list[str]:
    notes = [
        "Assumption B.1 is decided for the optimal tokens, as it is stated, in the norm of the parametrisation: every "
        f"margin of the certified solution within {SUPPORT:g} of 1. The published bars count an average margin below "
        "1.1. Both have all instances as their denominator; an infeasible program has no such solution.",
    ]
    result = numbers.table("optimal_program")
    for p, name in enumerate(numbers.names):
        exact, published, total = (table[0, p] for table in assumption_counts(numbers))
        cells = [
            f"d={d} {exact[k]:,} and {published[k]:,} of {total[k]:,}, {np.sum(result[0, p, k] == 3):,} infeasible"
            for k, d in enumerate(numbers.grid.d)
        ]
        notes.append(f"{name}, Assumption B.1 as stated, and as published: {'; '.join(cells)}.")
    solved = result == ProgramResult.optimal
    excess = numbers.table("largest_margin") - 1.0
    close = solved & (excess > SUPPORT) & (excess <= CLOSE)
    open_ = ~solved & (result != ProgramResult.infeasible)
    notes.append(
        f"Largest margin between {SUPPORT:g} and {CLOSE:g} above 1: {int(close.sum())} instances. Programs of the "
        f"optimal tokens that were neither solved nor certified to be infeasible: {int(open_.sum())}"
        + (f" ({where(numbers, open_)})." if open_.any() else ".")
    )
    return notes


def draw(numbers: PercentNumbers) -> Any:
    """Red: the optimal tokens are selected. Blue on top: other tokens, locally optimal by Definition 2. Teal: the
    complement. Green: Assumption B.1 as it is stated (every margin of the optimal tokens' program within 1e-6 of
    1), and in outline by the rule behind the published bars (average margin below 1.1). (a) W, (b) (K, Q), on
    the same instances. The flow's limit stands in place of 2,000 steps of normalised descent; the text gives
    no values of d, those here cover 2 to 20."""
    exact, published, ran = (counts[0] for counts in assumption_counts(numbers))
    return draw_percentage_bars(
        {
            **convergence_bars(numbers),
            "marks": interval(exact, ran)[0],
            "marks_label": "Assumption B.1: all margins 1",
            "outlines": interval(published, ran)[0],
            "outlines_label": "average margin below 1.1",
        }
    )


def _statements(numbers: PercentNumbers) -> list[Statement[PercentNumbers]]:
    kinds = numbers.grid.parametrization
    return [
        *convergence(
            kinds,
            "Figure 5",
            "Larger overparameterization (d) relates to a higher percentage of globally-optimal SVM convergence.",
            "The percentage of global convergence (red bars) approaches 100% as d grows.",
        ),
        *assumption_statements(kinds),
    ]


register(
    FIGURE5,
    "fig5",
    title="Where W and (K, Q) converge as d grows, and Assumption B.1",
    statements=_statements,
    notes=lambda numbers: notes_of(numbers) + assumption_notes(numbers),
    draw=draw,
)
