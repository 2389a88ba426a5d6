r"""Assumptions 1–4 of Sheen et al. (2024) on one instance, each a verdict with its slack, and how often they hold."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxflow._core import checked, positive_or_one, require
from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.losses import Exponential
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import AbstractAttention, CombinedAttention, as_head, token_scores
from jaxflow.papers.experiment import Again, Dataset, Draw, Part, Statement, Sweep, Table, register
from jaxflow.papers.independent import best_rows, separable, tokens_of
from jaxflow.papers.sheen2024.frame import not_selected
from jaxflow.papers.sheen2024.instances import equal_score_tokens, unit
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory.prediction import Assumption

# Scores and inner products of constructed data are equal to some hundred roundings.
ROUNDING = 1e-11


@checked()
def assumption_1(data: TokenData, head: Any) -> Assumption:
    r"""Assumption 1: unique optimal tokens, and some W with $(x_{i\,\mathrm{opt}(i)}-x_{il})^\top Wz_i\ge1$.

    The slack is the largest margin of a W with $\|W\|_F=1$ (positive exactly where it holds; zero where a Farkas
    ray proves that there is none, NaN where neither was found), or minus infinity where optimal tokens are tied.
    """
    return _separable(data, head, "frobenius", "the optimal tokens are unique and separable by some W (Assumption 1)")


@checked()
def diagonal_separability(data: TokenData, head: Any) -> Assumption:
    r"""What Lemma 4.2 and the $\ell_1$-SVM need beyond Assumption 1: some *diagonal* W separates.

    The slack is the largest margin of a β with $\|\beta\|_1=1$, and otherwise as for `assumption_1`.
    """
    return _separable(data, head, "l1", "the optimal tokens are unique and separable by a diagonal W")


def _separable(data: TokenData, head: Any, norm: str, statement: str) -> Assumption:
    scores = token_scores(data, as_head(head))
    best = optimal_tokens(scores, data.visible)
    first = best & (jnp.cumsum(best, axis=-1) == 1)
    solution = solve(attention_svm(data, first, norm))
    found = (solution.result == ProgramResult.optimal) | (solution.result == ProgramResult.inaccurate)
    value = solution.certificate.primal_value
    margin = jnp.where(found & jnp.isfinite(value) & (value > 0), 1.0 / positive_or_one(value), jnp.nan)
    margin = jnp.where(solution.result == ProgramResult.infeasible, 0.0, margin)
    tied = jnp.any(jnp.sum(best, axis=-1) > 1)
    slack = jnp.where(tied, -jnp.inf, margin)
    return Assumption(statement, slack > 0, slack)


@checked(positive=["tolerance"])
def assumption_2(data: TokenData, head: Any, tolerance: float = ROUNDING) -> Assumption:
    r"""Assumption 2: $\gamma_{i\,\mathrm{opt}(i)}>\gamma_{il}=\gamma_{il'}$.

    The slack is `tolerance` minus the largest spread $\max_{l,l'}|\gamma_{il}-\gamma_{il'}|$ over the gap. The
    relaxed assumption (remark below Assumption 2) is the same with a `tolerance` that is no rounding.
    """
    scores = token_scores(data, as_head(head))
    best, second = _best_and_second(scores, data.visible)
    lowest = jnp.min(jnp.where(data.visible, scores, jnp.inf), axis=-1)
    gap = best - second
    spread = jnp.where(gap > 0, (second - lowest) / positive_or_one(gap), jnp.inf)
    slack = tolerance - jnp.max(spread)
    return _within(slack, "all scores but the best are equal in every sequence (Assumption 2)")


@checked()
def assumption_3(risk: EmpiricalRisk, model: AbstractAttention) -> Assumption:
    r"""Assumption 3: a bound on the loss at the start.

    $$L(\theta(0))\le\min_j\frac1n(e^{-\gamma_{j,\mathrm{nopt}}}+\sum_{i\ne j}e^{-\gamma_{i\,\mathrm{opt}(i)}})$$
    For the exponential loss, a mean over sequences. $\gamma_{j,\mathrm{nopt}}$ is the best of the non-optimal scores
    (under Assumption 2 they are one number). The slack is the right side's logarithm minus the left side's.
    """
    data: Any = risk.data
    best, second = _best_and_second(token_scores(data, model.head), data.visible)
    n = best.shape[0]
    # One row for each j: the exponents of the sum.
    exponents = jnp.where(jnp.eye(n, dtype=bool), -second[:, None], -best[None, :])
    bound = jnp.min(jax.nn.logsumexp(exponents, axis=-1)) - jnp.log(n)
    slack = bound - risk.log_value(model)
    return _within(slack, "the loss at the start is small enough (Assumption 3)")


@checked()
def assumption_4(data: TokenData, selection: Bool[Array, "n T"]) -> tuple[Assumption, Assumption, Assumption]:
    r"""Assumption 4 (i), (ii), (iii) for the tokens `selection` (one in each sequence, the optimal ones).

    Slacks are `ROUNDING` minus

    - (i) the largest $|\cos|$ of two optimal tokens or two queries;
    - (ii) the largest $1-|\cos|$ of an optimal token with its query, as $\frac12\|\cdot\|^2$ of unit vectors;
    - (iii) the residual of the best pairing: over its pairs, the largest of
      $|x^\top(x_l-x_{l'})|/\|x\|^2$ and $\|x_l+x_{l'}-2cx\|/\|x\|$ with x the optimal token; c outside of
      [−1, 1) counts by how far. Infinite for an odd number of non-optimal tokens.

    Every pairing is tried: T is at most 11 (945 of them). **Raises:** `ValueError` beyond.
    """
    best = jnp.sum(jnp.where(selection[..., None], data.tokens, 0.0), axis=1)
    u, z = unit(best), unit(data.queries)
    off = ~jnp.eye(u.shape[0], dtype=bool)
    crossed = jnp.maximum(
        jnp.max(jnp.abs(u @ u.T), where=off, initial=0.0), jnp.max(jnp.abs(z @ z.T), where=off, initial=0.0)
    )
    side = jnp.sign(jnp.sum(u * z, axis=-1, keepdims=True))
    apart = 0.5 * jnp.max(jnp.sum((side * u - z) ** 2, axis=-1))
    unpaired = _unpaired(data, selection, best)
    parts = (
        (crossed, "optimal tokens are orthogonal to each other, and so are queries (Assumption 4 (i))"),
        (apart, "every query is parallel to its optimal token (Assumption 4 (ii))"),
        (unpaired, "non-optimal tokens come in pairs about the optimal one (Assumption 4 (iii))"),
    )
    first, second, third = (_within(ROUNDING - residual, statement) for residual, statement in parts)
    return first, second, third


@checked(least={"n": 1, "T": 2})
def score_gap_needed(n: int, T: int) -> float:
    r"""The least Δ with $ne^{-\Delta/T}\le1+(n-1)e^{-\Delta}$: Assumption 3 at β = 0 with equal gaps Δ and equal
    $\gamma_{i,\mathrm{nopt}}$, about $T\ln n$; 0 where every gap will do (n = 1, and n = T = 2).
    """
    if (n - 1) * T <= n:
        return 0.0
    # With x = e^(-Δ/T), 1 + (n-1) x^T - n x is zero at x = 1, falls to its minimum, and has its other root below that.
    low, high = T / (T - 1) * np.log((n - 1) * T / n), T * np.log(n)
    for _ in range(100):
        middle = 0.5 * (low + high)
        if n * np.exp(-middle / T) <= 1.0 + (n - 1) * np.exp(-middle):
            high = middle
        else:
            low = middle
    return float(high)


def _unpaired(data: TokenData, selection: Array, best: Array) -> Float[Array, ""]:
    T = data.tokens.shape[1]
    if T % 2 == 0:
        return jnp.asarray(jnp.inf)
    require(T <= 11, "data", f"pairings are enumerated for T <= 11 tokens, got {T}")
    others = jnp.take_along_axis(data.tokens, not_selected(selection)[..., None], axis=1)
    square = jnp.sum(best**2, axis=-1)[:, None, None]
    along = jnp.einsum("nld,nd->nl", others, best)
    uneven = jnp.abs(along[:, :, None] - along[:, None, :]) / square
    c = 0.5 * (along[:, :, None] + along[:, None, :]) / square
    total = others[:, :, None, :] + others[:, None, :, :]
    sideways = jnp.linalg.norm(total - 2.0 * c[..., None] * best[:, None, None, :], axis=-1) / jnp.sqrt(square)
    outside = jnp.where(c >= 1.0, c - 1.0 + ROUNDING * 2, jnp.maximum(-1.0 - c, 0.0))
    cost = jnp.maximum(jnp.maximum(uneven, sideways), outside)
    pairings = np.asarray(list(_pairings(tuple(range(T - 1)))))
    worst = jnp.max(cost[:, pairings[..., 0], pairings[..., 1]], axis=-1)
    return jnp.max(jnp.min(worst, axis=-1))


def _pairings(items: tuple[int, ...]) -> Iterator[list[tuple[int, int]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for i, partner in enumerate(rest):
        for others in _pairings(rest[:i] + rest[i + 1 :]):
            yield [(first, partner), *others]


def _within(slack: Float[Array, ""], statement: str) -> Assumption:
    return Assumption(statement, slack >= 0, slack)


def _best_and_second(scores: Float[Array, "n T"], visible: Bool[Array, "n T"]) -> tuple[Array, Array]:
    best, second = jnp.moveaxis(jax.lax.top_k(jnp.where(visible, scores, -jnp.inf), 2)[0], -1, 0)
    return best, second


TRIALS = {"quick": 64, "paper": 1024, "large": 8192}
SHAPE = (6, 8, 10)
# (n, L) and multiples of the needed gap, of which the middle ones are next to the bound itself.
SIZES = ((2, 3), (3, 5), (4, 4), (6, 8), (10, 10))
MULTIPLES = (0.5, 0.99, 1.0 - 1e-9, 1.0 + 1e-9, 1.01, 2.0)


def separability(key: Any, shape: tuple[int, int, int]) -> Table:
    """Of one instance the slacks of Assumption 1 and of separability by a diagonal W: positive, 0 with a Farkas ray, or
    NaN."""
    data, head = random_tokens(key, *shape)
    return Table(general=assumption_1(data, head).slack, diagonal=diagonal_separability(data, head).slack)


def slack(key: Any, n: int, T: int, multiple: float) -> float:
    """Of Assumption 3 at W = 0 for equal gaps of `multiple` times what it needs."""
    data, head = equal_score_tokens(key, n, T, 4, multiple * score_gap_needed(n, T))
    return float(assumption_3(EmpiricalRisk(data, Exponential()), CombinedAttention(jnp.zeros((4, 4)), head)).slack)


def gaps(scale: str, key: Any) -> Table:
    """`slack` of Assumption 3 at W = 0 with equal gaps, `(sizes, multiples)`."""
    return Table(slack=np.asarray([[slack(key, n, T, multiple) for multiple in MULTIPLES] for n, T in SIZES]))


# `separability` `(1, b)`: of unit-sphere data; `gaps`: of data of Assumption 2, about the bound of Assumption 3.
ASSUMPTIONS = Dataset(
    "sheen2024",
    "assumptions",
    {
        "separability": Part(separability, {"sphere": SHAPE}, TRIALS, block=32),
        "gaps": Sweep(gaps),
    },
)


def _decided(data: Table) -> np.ndarray:
    return np.isfinite(data.general) & np.isfinite(data.diagonal)


def _separable_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    given = tokens_of(*random_tokens(draw.instance("separability", at[0])[0], *SHAPE))
    return float(not separable(np.diagonal(best_rows(given), axis1=1, axis2=2)))


SEPARABLE = Statement[Table](
    source="ℓ1-SVM",
    says="Assumption 1 makes the diagonal program feasible (it is what §4 works with); unit-sphere data, n, L, d = "
    f"{SHAPE}.",
    # Where separability is open the instance may be inside: it is counted, and decides nothing.
    inside=lambda n: (n.separability.general[0] > 0) | ~_decided(n.separability.at(0)),
    residual=lambda n: np.where(_decided(n.separability.at(0)), n.separability.at(0).diagonal <= 0, np.nan),
    again=Again("HiGHS of SciPy", _separable_again, 0.0),
)


def _other_side(numbers: Table) -> np.ndarray:
    """How far the slack is on the wrong side of zero; 0 on the right one."""
    above = np.asarray(MULTIPLES)[None] > 1.0
    slacks = numbers.gaps.slack
    wrong = (slacks >= 0) != above
    return np.where(np.isnan(slacks), np.nan, np.where(wrong, np.maximum(np.abs(slacks), 1e-300), 0.0))


GAP = Statement[Table](
    source="Assumption 3",
    says='"If we start with β(0) = 0, Assumption 3 holds when the gap ... is sufficiently large": from which gap on.',
    residual=_other_side,
    bound=(0.0, "slack beyond the bound"),
)

register(ASSUMPTIONS, title="Assumptions 1 and 3, diagonal separability", statements=[SEPARABLE, GAP])
