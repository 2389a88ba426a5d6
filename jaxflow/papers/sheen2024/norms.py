"""`reproduce sheen2024 norms`: one data set, three parametrisations, three norms (§4.2); Lemma 4.2 as printed."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import Outcome
from jaxflow.data import TokenData, optimal_tokens
from jaxflow.limits import find_limit
from jaxflow.losses import Exponential
from jaxflow.margin import ProgramResult, attention_svm, certify, solve
from jaxflow.models import CombinedAttention, FactoredAttention, token_scores
from jaxflow.papers.drawing import dress
from jaxflow.papers.experiment import Again, Dataset, Draw, Part, Statement, Table, register
from jaxflow.papers.independent import best_rows, flow, separable, tokens_of
from jaxflow.papers.sheen2024.diagonal import unbalanced_start
from jaxflow.papers.sheen2024.instances import equal_score_tokens
from jaxflow.papers.sheen2024.separability import assumption_2, score_gap_needed
from jaxflow.plots import COLORS, new_figure
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey

# n, L, d. Few dimensions: a general W separates almost always, a diagonal one often cannot.
SHAPE = (4, 4, 5)
KINDS = ("combined", "factored", "diagonal")
NORMS = ("frobenius", "nuclear", "l1")
NAMES = ("Frobenius", "nuclear", "ℓ1")
TRIALS = {"quick": 24, "paper": 128, "large": 4096}
CERTIFIED = 1e-8
# Limits whose norms are closer than this are not told apart.
APART = 1e-3
# |grad L| / sum |p| of a point at rest; saturated limits end between 1e-2 and 1.
RESTS = 1e-6


def start_of(kind: str, key: Any, data: TokenData, head: Array) -> Any:
    """W at zero, K and Q with random entries, diagonal weights as in (5) with ω₀ = 0.1."""
    d = data.tokens.shape[-1]
    if kind == "combined":
        return CombinedAttention(jnp.zeros((d, d)), head)
    if kind == "factored":
        return FactoredAttention.init(key, data, head)
    return unbalanced_start(jnp.full(d, 0.1), head)[0]


def draw_data(key: Any) -> tuple[TokenData, Array]:
    """Random data of Assumption 2 with 1.1 times the gap that Assumption 3 needs."""
    n, T, d = SHAPE
    return equal_score_tokens(subkey(key, "data"), n, T, d, 1.1 * score_gap_needed(n, T))


def follow(key: Any, kind: str) -> Table:
    r"""`find_limit` on one data set.

    - `outcome`, `stationarity`: of the limit.
    - `weights` `(d, d)`: the flow's own direction at margin one.
    - `ratio` `(3,)`: its Frobenius, nuclear and (for diagonal weights; else NaN) ℓ1 norm over the optima; `results`:
      of these programs; `separable`: 1 over their optima, the largest margin of a W of norm one; 0 where a Farkas ray
      proves that there is none, NaN where neither was found.
    - `equal`: slack of Assumption 2.
    """
    data, head = draw_data(key)
    model = start_of(kind, subkey(key, "start"), data, head)
    limit = find_limit(EmpiricalRisk(data, Exponential()), model, throw=False)
    direction = limit.flow_direction
    best = optimal_tokens(token_scores(data, model.head), data.visible)
    ratio, results, separable = [], [], []
    for norm in NORMS:
        program = attention_svm(data, best, norm)
        solution = solve(program)
        primal = jnp.diagonal(direction) if norm == "l1" else direction
        optimum = solution.certificate.primal_value
        value = certify(program, primal, solution.dual).primal_value / optimum
        solved, infeasible = solution.result == ProgramResult.optimal, solution.result == ProgramResult.infeasible
        ratio.append(jnp.full_like(value, jnp.nan) if norm == "l1" and kind != "diagonal" else value)
        results.append(solution.result.value)
        separable.append(jnp.where(solved, 1.0 / optimum, jnp.where(infeasible, 0.0, jnp.nan)))
    return Table(
        outcome=limit.outcome.value,
        stationarity=limit.stationarity,
        weights=direction,
        ratio=jnp.stack(ratio),
        results=jnp.stack(results),
        separable=jnp.stack(separable),
        equal=assumption_2(data, head).slack,
    )


LIMITS = Dataset("sheen2024", "limits", {"limits": Part(follow, {kind: kind for kind in KINDS}, TRIALS)})


def feasible(limits: Table) -> np.ndarray:
    """Data sets on which no program is infeasible: where one has no solution there is no limit to compare, `(b,)`."""
    return ~np.any(limits.results == ProgramResult.infeasible, axis=(0, 2))


def comparable(limits: Table) -> np.ndarray:
    """Of those the ones with three certified limits and three solved programs, `(b,)`."""
    good = np.all(limits.outcome == Outcome.globally_optimal, axis=0)
    return feasible(limits) & good & np.all(limits.results == ProgramResult.optimal, axis=(0, 2))


def own_norm(row: int) -> Statement[Table]:
    """The limit of one parametrisation is the least in its own norm, by its own direction and its own program alone."""

    def excess(limits: Table) -> np.ndarray:
        known = (limits.outcome == Outcome.globally_optimal) & (limits.results[:, row] == ProgramResult.optimal)
        return np.where(known, np.abs(limits.ratio[:, row] - 1.0), np.nan)

    return Statement(
        source="Theorem 4.1" if KINDS[row] == "diagonal" else "§4.2",
        says=f"The limit of {KINDS[row]} weights is the least in the {NAMES[row]} norm.",
        of=lambda n: n.limits.at(row),
        inside=lambda limits: limits.results[:, row] != ProgramResult.infeasible,
        residual=excess,
        bound=(CERTIFIED, "|norm of the flow's own direction / optimum − 1|"),
        certified="the duality gap of the flow's own direction",
    )


def other_norm(row: int, norm: int) -> Statement[Table]:
    """The limit of one parametrisation is not the least in the norm of another."""
    return Statement(
        source="§4.2",
        says=f"The implicit regularisation differs: the limit of {KINDS[row]} weights is not the least in the "
        f"{NAMES[norm]} norm.",
        inside=lambda n: feasible(n.limits),
        residual=lambda n: np.where(comparable(n.limits), 1.0 - n.limits.ratio[row, :, norm], np.nan),
        bound=-APART,
    )


def _at_rest(limits: Table) -> np.ndarray:
    """1 where the flow rests at a finite point, 0 where it selects tokens and so goes to infinity; NaN for others."""
    selected = (Outcome.globally_optimal, Outcome.locally_optimal, Outcome.not_locally_optimal)
    rests = (limits.outcome == Outcome.finite_stationary_point) & (limits.stationarity <= RESTS)
    return np.where(rests, 1.0, np.where(np.isin(limits.outcome, [o.value for o in selected]), 0.0, np.nan))


def _rests_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    """1 where HiGHS finds no diagonal W, and LSODA the same point at log t = 20 and at 10."""
    key, _ = draw.instance("limits", at[0])
    data, head = draw_data(key)
    given = tokens_of(data, head)
    start = np.stack([np.full(SHAPE[2], 0.1 * np.sqrt(2.0)), np.zeros(SHAPE[2])])
    early, late = np.prod(flow(given, start, 10.0, 20.0, kind="diagonal", loss="exponential"), axis=1)
    moved = np.linalg.norm(late - early) / np.linalg.norm(late)
    return float(moved <= APART and not separable(np.diagonal(best_rows(given), axis1=1, axis2=2)))


def _diverges(norm: str, says: str, again: Again[Table] | None = None) -> Statement[Table]:
    """Lemma 4.2, where the tokens are separable in this norm."""
    return Statement(
        source="Lemma 4.2",
        says=f"‖β(t)‖ → ∞ under {says}; n, L, d = {SHAPE}.",
        of=lambda n: n.limits.at(KINDS.index("diagonal")),
        inside=lambda limits: (limits.separable[:, NORMS.index(norm)] > 0) & (limits.equal >= 0),
        residual=_at_rest,
        again=again,
    )


def notes(numbers: Table) -> list[str]:
    """How every limit ended."""
    limits, counts = numbers.limits, []
    for kind, outcome in zip(KINDS, limits.outcome, strict=True):
        codes, times = np.unique(outcome, return_counts=True)
        parts = ", ".join(f"{count} {Outcome(int(code)).name}" for code, count in zip(codes, times, strict=True))
        counts.append(f"{kind}: {parts}.")
    good = comparable(limits)
    return [*counts, f"{int(good.sum())} of {good.size} data sets have three such limits and three solved programs."]


def draw(numbers: Table) -> Any:
    r"""One data set, the first with three limits: the limits of W, (K, Q) and diagonal weights, and their norms
    relative to the least; ℓ1 among diagonal matrices, for the one that is."""
    limits = numbers.limits
    shown = int(np.argmax(comparable(limits)))
    figure, axes = new_figure(4, width=14.0, height=3.6)
    titles = {"combined": r"flow of $W$", "factored": r"flow of $(K,Q)$", "diagonal": r"flow of $\mathrm{diag}(\beta)$"}
    for axis, kind, weights in zip(axes, KINDS, limits.weights[:, shown], strict=False):
        axis.grid(False)
        # Each in its own scale: they are directions, and a diagonal one has few, large entries.
        top = float(np.abs(weights).max())
        axis.imshow(weights, cmap="RdBu", vmin=-top, vmax=top)
        axis.set(xticks=[], yticks=[])
        values = np.linalg.svd(weights, compute_uv=False)
        rank = int((values > 1e-4 * values[0]).sum())
        axis.set_title(f"{titles[kind]}: rank {rank}", fontsize=10)
    for row, (kind, ratio) in enumerate(zip(KINDS, limits.ratio[:, shown], strict=True)):
        x = np.arange(3) + 0.27 * (row - 1)
        seen = np.isfinite(ratio)
        axes[3].bar(x[seen], ratio[seen] - 1.0, width=0.25, color=COLORS[kind], label=titles[kind])
        for place, value in zip(x[seen], ratio[seen], strict=True):
            text = f"{value - 1:.0e}" if value - 1 < 1e-3 else f"{value - 1:.2f}"
            axes[3].text(place, value - 1.0, text, ha="center", va="bottom", fontsize=6)
    axes[3].set_xticks(range(3), (r"$\|W\|_F$", r"$\|W\|_*$", r"$\|\mathrm{diag}\|_1$"))
    dress(axes[3], "each is the least in its own norm", y="norm at margin one / optimum − 1", legend=7)
    return figure


register(
    LIMITS,
    "norms",
    title="§4.2: limits of W, (K, Q) and diagonal weights on one data set, each the least in its own norm",
    statements=[*(own_norm(row) for row in range(3)), other_norm(0, 1), other_norm(1, 0), other_norm(2, 1)],
    notes=notes,
    draw=draw,
)

register(
    LIMITS,
    "divergence",
    title="Lemma 4.2 and Assumption 1",
    statements=[
        _diverges(
            "frobenius",
            "Assumptions 1 and 2 alone, as printed",
            Again("LSODA and HiGHS of SciPy", _rests_again, 0.0),
        ),
        _diverges("l1", "Assumption 2 where the ℓ1-SVM is feasible"),
    ],
)
