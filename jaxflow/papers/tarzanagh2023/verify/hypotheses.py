"""Assumptions A, B.2, C, D and E: what satisfies them, and how often random data do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import SelectionStatus
from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.losses import Correlation, Exponential, Logistic
from jaxflow.models import ConcaveHead, LinearHead, MLPHead, token_scores
from jaxflow.papers.experiment import Statement, Table, keys_of, mapped, register, stacked, swept
from jaxflow.papers.tarzanagh2023.programs import solved
from jaxflow.papers.tarzanagh2023.verify import instances as draws
from jaxflow.papers.tarzanagh2023.verify.regularization_path import low_and_high

TRIALS = {"quick": 64, "paper": 256, "large": 8192}
# Loss, with M0 and M1 of Assumption A on [-INTERVAL, INTERVAL].
INTERVAL = 5.0
LOSSES: dict[str, tuple[Any, float, float]] = {
    "logistic": (Logistic(), 0.25, 1.0),
    "exponential": (Exponential(), float(np.exp(INTERVAL)), float(np.exp(INTERVAL))),
    "correlation": (Correlation(), 0.0, 1.0),
}
# n = T = 3 for the assumptions on data: 27 choices of tokens; d from the bound of Theorem 1 on.
N, T = 3, 3
DIMENSIONS = (3, 6, 12, 24)
HEADS = ("linear", "convex", "mlp", "concave")
# Sums of a few numbers of order one.
ROUNDING = 1e-12
# The same over the distance of two points.
SHORT = 1e-6


def losses(name: str, key: Any, count: int) -> Table:
    """Of one loss, at 100 pairs u, w of the interval for each of `count`: `bend` |ℓ'(u) − ℓ'(w)|/|u − w| − M0,
    `excess` |ℓ'(u)| − M1, and `slope` ℓ'(u)."""
    loss, M0, M1 = LOSSES[name]
    slope = jax.vmap(jax.grad(lambda f: loss.value(f, jnp.ones(()))))
    u, w = jax.random.uniform(key, (2, 100 * count), minval=-INTERVAL, maxval=INTERVAL)
    bend = jnp.abs(slope(u) - slope(w)) / jnp.abs(u - w)
    return Table(bend=bend - M0, excess=jnp.abs(slope(u)) - M1, slope=slope(u))


@mapped()
def _equal(key: Array) -> Table:
    """Draws with equal scores: largest `spread` of the non-optimal ones, least `gap` to the optimal one."""
    spread, gap = draws.spread_and_gap(*draws.equal_scores(key, 5, 5, 4))
    return Table(spread=spread, gap=gap)


@mapped(axes=(0, None))
def _optimal_support(key: Array, d: Any) -> Table:
    """Assumptions C and D on unit-sphere data; one program for all d, coordinates beyond it are zero.

    At each of `DIMENSIONS`, `(k, b)`: whether the first step of descent is `separating`; whether every other feasible
    choice of tokens `meets` D, or that is `unsure`; `others` that are locally optimal, and whether that is `ambiguous`
    of one.
    """
    wide = DIMENSIONS[-1]
    *keys, key_labels = jax.random.split(key, 4)
    labels = jnp.where(jax.random.bernoulli(key_labels, 0.5, (N,)), 1.0, -1.0)
    data, head = draws.unit_data(wide, d, keys, labels, T)
    best = optimal_tokens(token_scores(data, head), data.visible)

    choices = jnp.asarray(draws.choices_of_tokens(N, T))
    every, same = draws.programs_of(data, head, choices), jnp.all(draws.masks(choices, data) == best, axis=(1, 2))
    # Assumption D asks it of every other feasible choice.
    asked = ~same & solved(every.result)
    supported = jnp.any(every.support & best, axis=(1, 2))
    near = jnp.any(~every.support & (every.excess <= 1e-6) & best, axis=(1, 2))
    return Table(
        separating=jnp.min(draws.margins_of(data, best, -draws.gradient_of(data, head, jnp.zeros((wide, wide))))) > 0,
        meets=jnp.all(~asked | supported),
        unsure=jnp.any(asked & near & ~supported),
        others=jnp.sum(~same & (every.status == SelectionStatus.local.value)),
        ambiguous=jnp.any(every.status == SelectionStatus.ambiguous.value),
    )


@mapped(static=1)
def top_score(name: str, key: Array) -> Array:
    r"""$Yh(x(s))-\gamma_\alpha+c_\alpha(1-s_\alpha)$ with $c_\alpha$ of (87) of one head at a random choice of tokens,
    the largest of 200 random s for each key; NaN where no token scores below α anywhere.
    """
    key_data, key_head, key_choice, key_s = jax.random.split(key, 4)
    data, v = random_tokens(key_data, 3, 5, 4)
    heads = {
        "linear": lambda: LinearHead(v),
        "convex": lambda: ConcaveHead(v, -0.5),
        "mlp": lambda: MLPHead(jax.random.normal(key_head, (6, 4))),
        "concave": lambda: ConcaveHead(v, 0.5),
    }
    head: Any = heads[name]()
    # A convex h preserves the top score of sequences with label 1; for linear ones the label is any.
    data = data if name == "linear" else TokenData(data.tokens, data.queries, jnp.ones(3))
    scores = token_scores(data, head)
    selection = jax.nn.one_hot(jax.random.randint(key_choice, (3,), 0, 5), 5, dtype=bool)
    low, _ = low_and_high(scores, data.visible, selection)
    own = jnp.sum(jnp.where(selection, scores, 0.0), axis=-1)
    c = jnp.min(own - jnp.max(jnp.where(low, scores, -jnp.inf), axis=-1))

    def at(key: Array) -> Array:
        spread = 5.0 * jax.random.normal(key, (3, 5))
        s = jax.nn.softmax(jnp.where(low | selection, spread, -jnp.inf), axis=-1)
        value = data.labels * jax.vmap(head)(jnp.einsum("nt,ntd->nd", s, data.tokens))
        rest = jnp.sum(jnp.where(selection, 0.0, s), axis=-1)
        return jnp.max(value - own + jnp.where(jnp.isfinite(c), c, 0.0) * rest)

    worst = jnp.max(jax.vmap(at)(jax.random.split(key_s, 200)))
    return jnp.where(jnp.isfinite(c), worst, jnp.nan)


# Every instance is drawn once and counted, whether it satisfies an assumption or not. `excess` is `top_score` of
# each of `HEADS`.
HYPOTHESES = swept(
    "tarzanagh2023",
    "hypotheses",
    slopes=lambda scale, key: stacked(losses(name, jax.random.fold_in(key, 0), TRIALS[scale]) for name in LOSSES),
    equal=lambda scale, key: _equal(keys_of(key, 1, TRIALS[scale])),
    support=lambda scale, key: stacked(
        _optimal_support(keys_of(key, 100 + k, TRIALS[scale]), d) for k, d in enumerate(DIMENSIONS)
    ),
    top=lambda scale, key: Table(excess=np.stack([top_score(name, keys_of(key, 2, TRIALS[scale])) for name in HEADS])),
)


def _slope_excess(numbers: Table) -> np.ndarray:
    """By how much a pair contradicts Assumption A; 0 where it does not."""
    found = numbers.slopes
    # Differences of slopes over short distances carry roundings over that distance.
    over = np.maximum(np.where(found.bend > SHORT, found.bend, 0.0), np.where(found.excess > ROUNDING, found.excess, 0))
    return np.where(found.slope < 0, over, np.inf)


A = Statement[Table](
    source="Assumption A",
    says="logistic, exponential and correlation loss are strictly decreasing, with M0-Lipschitz derivatives of size at "
    f"most M1 on [−{INTERVAL:g}, {INTERVAL:g}] (M0, M1 = 1/4, 1; e^{INTERVAL:g}, e^{INTERVAL:g}; 0, 1)",
    residual=_slope_excess,
    bound=(0.0, "|Δℓ'|/|Δu| − M0 or |ℓ'| − M1 beyond rounding"),
)

B2 = Statement[Table](
    source="Assumption B.2",
    says="the construction of Theorem 5's proof (non-optimal tokens moved along v to one score) satisfies it, "
    "n = T = 5, d = 4",
    residual=lambda n: np.where(n.equal.gap > 0, n.equal.spread, np.inf),
    bound=(0.0, "spread of non-optimal scores"),
)

C = Statement[Table](
    source="Assumption C",
    says=f"it is not empty: at each d some random data satisfy it (the first step of descent separates), n = T = {N}",
    # Random draws among which there is none do not prove that there is none.
    residual=lambda n: np.where(np.any(n.support.separating, axis=1), 0.0, np.nan),
    found=lambda n, known: f"{np.sum(n.support.separating)} of {n.support.separating.size} draws satisfy it",
)


def _others(numbers: Table) -> np.ndarray:
    """Other locally-optimal choices; a choice at the edge of local optimality, or a margin at that of support, decides
    nothing."""
    found = numbers.support
    clear = ~found.unsure & ((found.others > 0) | ~found.ambiguous)
    return np.where(clear, found.others, np.nan)


D = Statement[Table](
    source="Assumption D",
    says=f"where it holds, W^mm is the only locally-optimal direction; all {T**N} choices of tokens, n = T = {N}",
    inside=lambda n: n.support.meets,
    residual=_others,
    bound=(0.0, "other locally-optimal choices"),
)

# Heads of which the assumption is proven.
PROVEN = ("linear", "convex", "mlp")

E = Statement[Table](
    source="Assumption E",
    says="linear heads, and convex ones with labels 1 (v·x + ‖x‖²/2 and 1ᵀReLU(Vx)), satisfy it with c_α of (87), at "
    "random α and 200 convex combinations of tokens each",
    # Where some token scores below α.
    inside=lambda n: np.isfinite(n.top.excess) & np.isin(HEADS, PROVEN)[:, None],
    residual=lambda n: n.top.excess,
    bound=(ROUNDING, "Y h(x(s)) − γ_α + c_α(1 − s_α); at most 0"),
)

register(HYPOTHESES, title="Assumptions A, B.2, C, D, E", statements=[A, B2, C, D, E])
