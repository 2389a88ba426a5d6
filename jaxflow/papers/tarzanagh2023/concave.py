r"""One sequence of orthonormal tokens under a concave head (§6.1): figures 9 and 12.

With $h(x)=v^\top x-\lambda\|x\|^2$ and $\ell(x)=-x$ the risk of W is $\lambda\|s\|^2-\gamma^\top s$ (eq. 9), a
convex function of the attention probabilities s alone. Its minimiser over the simplex is the projection of
$\gamma/2\lambda$. Here are random instances, this exact target, where the flow and the published descent end, and what
the programs say of it.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jaxflow._core import checked, good
from jaxflow.data import TokenData
from jaxflow.data.random import unit_sphere
from jaxflow.flow import ArcLength, LogTime
from jaxflow.losses import Correlation
from jaxflow.margin import attention_svm, finite_component, solve
from jaxflow.models import CombinedAttention, ConcaveHead
from jaxflow.papers.experiment import Mask, Part, Statement, Sweep, Table, mapped, stacked
from jaxflow.papers.tarzanagh2023.mixture import Near, follow_mixture
from jaxflow.papers.tarzanagh2023.programs import cosine, solved
from jaxflow.papers.tarzanagh2023.protocol import WAYS, published_descent
from jaxflow.risk import EmpiricalRisk

# Thresholds of (9) nearer to 2λ than this, a thousand rounding errors, are compared in rational arithmetic.
NEAR_TIE = 1e-12


def draw(T: int, d: int, key: Key[Array, ""], lam: Any, scores: Any = None) -> Table:
    r"""Haar-orthonormal tokens, query and head uniform on the sphere, W started at $U(\pm1/\sqrt d)$.

    **Arguments:** `scores`: $\gamma$ and, where T < d, the head's other coordinates in the completed basis,
    `(d,)`; None for a head independent of the tokens, which has them uniform on the sphere.

    **Returns:** `tokens` `(T, d)`, `query`, head vector `v` `(d,)`, λ `lam`, and the `start` of W `(d, d)`.
    """
    key_basis, key_query, key_head, key_start = jax.random.split(key, 4)
    basis = jax.random.orthogonal(key_basis, d)
    scores = unit_sphere(key_head, d) if scores is None else scores
    start = jax.random.uniform(key_start, (d, d), minval=-1.0, maxval=1.0) / np.sqrt(d)
    return Table(
        tokens=basis[:T], query=unit_sphere(key_query, d), v=scores @ basis, lam=jnp.asarray(lam, float), start=start
    )


def draw_condition(tau: int, T: int, d: int, key: Key[Array, ""]) -> tuple[Array, Array, Int[Array, ""]]:
    r"""A head that satisfies (8), with λ uniform in $(\gamma^{gap}_1,\ \tau\gamma^{gap}_\tau/2)$, and how many draws.

    The head is drawn again until the interval is not empty: rejection defines the distribution.

    **Returns:** the head's coordinates in the basis of the tokens `(d,)` (the first T are γ), λ, draws.
    """

    def interval(scores: Array) -> tuple[Array, Array]:
        ordered = jnp.sort(scores[:T], descending=True)
        return ordered[0] - ordered[1], tau * (ordered[tau - 1] - ordered[tau]) / 2.0

    def empty(state: tuple) -> Bool[Array, ""]:
        low, high = interval(state[1])
        return ~(low < high)

    def again(state: tuple) -> tuple:
        key, _, draws = state
        key, this = jax.random.split(key)
        return key, unit_sphere(this, d), draws + 1

    key, key_lam = jax.random.split(key)
    state = again((key, jnp.zeros(d), jnp.asarray(0)))
    _, scores, draws = jax.lax.while_loop(empty, again, state)
    low, high = interval(scores)
    return scores, low + (high - low) * jax.random.uniform(key_lam), draws


def scores_of(instance: Table) -> Float[Array, " T"]:
    r"""$\gamma=Xv$."""
    return instance.tokens @ instance.v


def target(scores: Float[Array, " T"], lam: Float[Array, ""]) -> Float[Array, " T"]:
    r"""The minimiser of (9), $s^\star=\mathrm{Proj}_\Delta(\gamma/2\lambda)$; for λ = 0 the top token.

    In the order of the scores token j has weight iff $D_j=\sum_{m<j}m\,\gamma^{gap}_m<2\lambda$.
    """
    count = jnp.arange(1, scores.shape[0] + 1)
    ordered = jnp.sort(scores, descending=True)
    inside = (jnp.cumsum(ordered) - count * ordered < 2.0 * lam) | (count == 1)
    size = jnp.sum(inside)
    level = (jnp.sum(jnp.where(inside, ordered, 0.0)) - 2.0 * lam) / size
    safe = jnp.where(lam > 0, 2.0 * lam, 1.0)
    # Of tied top tokens at λ = 0 the first: any of their mixtures is optimal.
    top = (jnp.arange(scores.shape[0]) == jnp.argmax(scores)).astype(scores.dtype)
    return jnp.where(lam > 0, jnp.maximum(scores - level, 0.0) / safe, top)


def support_sizes(scores: np.ndarray, lam: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""How many nonzero entries $s^\star$ has, decided exactly for the given floating-point scores and λ.

    **Arguments:** `scores` `(..., T)`, `lam` `(...)`.

    **Returns:** sizes $1+\#\{j\ge2:D_j<2\lambda\}$ and whether a threshold was near enough to 2λ to be compared
    in rational arithmetic, both `(...)`.
    """
    ordered = -np.sort(-scores, axis=-1)
    steps = np.arange(1, scores.shape[-1]) * (ordered[..., :-1] - ordered[..., 1:])
    excess = np.cumsum(steps, axis=-1) - 2.0 * np.asarray(lam)[..., None]
    sizes = 1 + np.sum(excess < 0, axis=-1)
    near = np.any(np.abs(excess) < NEAR_TIE, axis=-1)
    for place in np.argwhere(near):
        at = tuple(place)
        exact = [Fraction(float(x)) for x in ordered[at]]
        bound = 2 * Fraction(float(np.asarray(lam)[at]))
        sizes[at] = 1 + sum(sum(exact[:j], Fraction(0)) - j * exact[j] < bound for j in range(1, len(exact)))
    return sizes, near


def problem(instance: Table) -> tuple[EmpiricalRisk, CombinedAttention]:
    """The risk −h with label 1, and the model at its start."""
    data = TokenData(instance.tokens[None], instance.query[None], jnp.ones(1))
    model = CombinedAttention(instance.start, ConcaveHead(instance.v, instance.lam))
    return EmpiricalRisk(data, Correlation()), model


# For batches of keys.
draw_batch, draw_conditions = mapped(static=2)(draw), mapped(static=3)(draw_condition)

# The paper's criterion: attention above the first is selected, below the second masked; between them the
# instance is filtered out.
SELECTED, MASKED = 1e-3, 1e-8

# A masked token decays like 1/(δt) with its multiplier δ in (9): 1e-13/δ at the end of the first part.
REACH = 30.0
# The first part is enough for those that end this near s*. The second ends this close to it, at most after this
# arc length; the third takes as long as the first.
NEAR = 5e-9
CLOSE = 1e-6
FARTHEST = 1000.0
# How W moves is measured over the last two stretches of this length in log t.
STRETCH = 8.0
# (Gen-SVM) for orthonormal tokens treats all masked tokens alike, and so degenerate a program is solved to 1e-11.
PROGRAM_GAP = 1e-10
# What is asked of the flow's end: its attention within this of s*.
REACHED = 1e-8


def selected(ends: Table) -> np.ndarray:
    """How many tokens the paper's criterion calls selected where flow or descent ends."""
    return np.sum(ends.attention > SELECTED, axis=-1)


def kept(ends: Table) -> Mask:
    """Whether the paper's criterion keeps an instance: no probability between masked and selected."""
    return ends.good & ~np.any((ends.attention <= SELECTED) & (ends.attention >= MASKED), axis=-1)


def flow_end(instance: Table) -> Table:
    r"""Where the flow of W ends, in up to three parts.

    The first goes to log t = `REACH`, and says how W moved over the last two stretches. Attention may then still
    give (almost) nothing to a token of the support: with k tokens in place its share s decays like $t^{-1+k/T}$
    as long as $ts$ is small against $1/\delta$, δ its multiplier in (9), and explodes when that is reached, at
    $\log t\sim(T/k)\log(1/\delta)$. Steps in log t cannot follow that; the second part goes on along the arc
    length until s* is near. (Its log t is not read: the explosion takes no time.)

    **Returns:** the last `attention`, the exact `target` `(T,)`, and whether all went well, `good`.

    - `error`: how far attention is from the target, at most, at the end.
    - `late`: it was not there by log t = `REACH`, and had to be followed along the arc length.
    - `weights` `(d, d)`; `moved` `(2, d, d)`: their motion over the last two stretches of log t.
    """
    risk, model = problem(instance)
    exact = target(scores_of(instance), instance.lam)
    saves = jnp.asarray([REACH - 2 * STRETCH, REACH - STRETCH, REACH])
    path = follow_mixture(risk, model, exact > 0, 0.5, clock=LogTime(), until=REACH, save_at=saves, max_steps=400)
    way = path.points.model.W
    first = path.final.model
    early = first.attention(risk.data)[0]
    # Steps that stall did so at an explosion: the second part takes over where they stand.
    there = jnp.asarray(good(path.result)) & (jnp.max(jnp.abs(early - exact)) <= NEAR)
    how: Any = {"clock": ArcLength(), "until": FARTHEST, "stop": Near(exact, CLOSE), "max_steps": 1000}
    rest = follow_mixture(risk, first, exact > 0, **how)
    # No time at all where the first part was enough.
    until = jnp.where(there, -REACH, REACH)
    last = follow_mixture(risk, rest.final.model, exact > 0, 0.5, clock=LogTime(), until=until, max_steps=400)
    late = last.final.model
    attention = jnp.where(there, early, late.attention(risk.data)[0])
    return Table(
        attention=attention,
        target=exact,
        error=jnp.max(jnp.abs(attention - exact)),
        late=~there,
        good=there | (jnp.asarray(good(rest.result)) & jnp.asarray(good(last.result))),
        weights=jnp.where(there, first.combined_weights(), late.combined_weights()),
        moved=jnp.stack([way[1] - way[0], way[2] - way[1]]),
    )


def descent_end(instance: Table) -> tuple[Array, Array, Array]:
    """Where the published protocol (normalised descent, η = 0.1, 2,000 steps) ends: attention, `good`, weights."""
    risk, model = problem(instance)
    path = published_descent(risk, model)
    final = path.final.model
    return final.attention(risk.data)[0], jnp.asarray(good(path.result)), final.combined_weights()


def _correlation(a: Array, b: Array) -> Array:
    return jnp.where(jnp.linalg.norm(a) * jnp.linalg.norm(b) > 0, cosine(a, b), jnp.nan)


@checked()
def best_correlation(
    weights: Float[Array, "d d"], finite: Float[Array, "d d"], direction: Float[Array, "d d"]
) -> Float[Array, ""]:
    r"""The largest correlation of given weights with $W^{SVMeq}=W^{fin}+\gamma\bar W^{mm}$, $\gamma\ge0$ (Fig. 8).

    With $\bar W$ of norm one and $F=f\bar W+F_\perp$, the best direction is the projection of the weights
    onto the plane of F and $\bar W$:
    $\gamma=\langle W,\bar W\rangle\|F_\perp\|^2/\langle W,F_\perp\rangle-f$ where
    $\langle W,F_\perp\rangle>0$.
    """
    unit = direction / jnp.linalg.norm(direction)
    inside = jnp.sum(finite * unit)
    across = finite - inside * unit
    square, pull = jnp.sum(across**2), jnp.sum(weights * across)
    toward = jnp.sum(weights * unit)
    aligned = pull > 0
    gamma = jnp.maximum(toward * square / jnp.where(aligned, pull, 1.0) - inside, 0.0)

    # Where the weights lean away from F⊥ the correlation has no maximum: its supremum is at infinity, or at 0.
    ends = jnp.where(cosine(finite, weights) > cosine(unit, weights), finite, unit)
    return cosine(jnp.where(aligned, finite + gamma * unit, ends), weights)


def predictivity(
    instance: Table, selection: Bool[Array, " T"], attention: Float[Array, " T"], weights: Float[Array, "d d"]
) -> tuple[Array, ...]:
    r"""How well the programs of a set of selected tokens predict W, and the solution of (Gen-SVM).

    `direction`, `combined`: correlations of W with that solution and with $W^{SVMeq}$; `solved`: whether the programs
    are. Where all tokens are selected (Gen-SVM) has no constraint and is solved by zero: no correlation with it (NaN),
    and $W^{SVMeq}=W^{fin}$.
    """
    data = problem(instance)[0].data
    program = attention_svm(data, selection[None])  # pyright: ignore[reportArgumentType]
    direction = solve(program, tolerance=PROGRAM_GAP)
    finite = solve(finite_component(data, selection[None], attention[None]))  # pyright: ignore[reportArgumentType]
    everything = jnp.all(selection)
    some = jnp.where(everything, jnp.eye(weights.shape[0]), direction.primal)
    combined = best_correlation(weights, finite.primal, some)
    combined = jnp.where(everything, _correlation(weights, finite.primal), combined)
    solution = jnp.where(everything, 0.0, direction.primal)
    both = solved(direction.result.value) & solved(finite.result.value)
    return _correlation(weights, solution), combined, both, solution


flow_batch, _descent, _predict = mapped()(flow_end), mapped()(descent_end), mapped()(predictivity)
_correlations = mapped()(jax.vmap(_correlation, (0, None)))


def targets(instances: Table) -> Table:
    """Of a batch: λ `lam`, the `scores` γ `(T,)`, and how many tokens s* has, `size`."""
    scores = np.asarray(jax.vmap(scores_of)(instances))
    return Table(lam=instances.lam, scores=scores, size=support_sizes(scores, np.asarray(instances.lam))[0])


def flows(instances: Table) -> Table:
    """Of a batch, held against the programs of the exact support of s*: columns of `flow_end` and `predictivity`, with
    the correlations of `moved` with the solution of (Gen-SVM), `(2,)`, and without `weights`."""
    end = flow_batch(instances)
    direction, combined, known, solution = _predict(instances, end.target > 0, end.target, end.weights)
    fit = {"direction": direction, "combined": combined, "solved": known}
    found = {name: column for name, column in end.named.items() if name != "weights"}
    return Table(found | fit | {"moved": _correlations(end.moved, solution)})


def descents(instances: Table) -> Table:
    """Of a batch, held against the programs of the tokens that the paper's criterion calls selected: `attention`
    `(T,)`, `good`, and columns of `predictivity`."""
    attention, ended, weights = _descent(instances)
    direction, combined, known, _ = _predict(instances, attention > SELECTED, attention, weights)
    return Table(direction=direction, combined=combined, solved=known, attention=attention, good=ended)


def parts(batches: Callable[[str, Any], Iterable[Table]], draw_from: Callable[[int], Any]) -> dict[str, Part | Sweep]:
    """`targets`, `flow` and `descent` of the batches of a scale and a key, a cell for each."""

    def sweep(of: Callable[[Table], Table]) -> Sweep:
        return Sweep(lambda scale, key: stacked(map(of, batches(scale, key))), draw_from)

    return {"targets": sweep(targets), "flow": sweep(flows), "descent": sweep(descents)}


def reaches(source: str) -> Statement[Any]:
    """Of numbers with `flow`."""

    return Statement(
        source=source,
        says="The eventual token composition is s*, the solution of the unconstrained softmax optimization (9).",
        residual=lambda n: np.where(n.flow.good, n.flow.error, np.nan),
        bound=REACHED,
    )


def notes_of(numbers: Table) -> list[str]:
    """The filter, where descent ends, and late flows."""
    flow, descent = numbers.flow, numbers.descent
    error = np.max(np.abs(descent.attention - flow.target), axis=-1)
    return [
        *(
            f"The paper's filter (no attention between 1e-8 and 1e-3) keeps {int(kept(ends).sum())} of "
            f"{ends.good.size} ends of {WAYS[name]}; {int(np.sum(~ends.good))} failed, {int(np.sum(~ends.solved))} "
            "have a program without a certified solution."
            for name, ends in (("flow", flow), ("descent", descent))
        ),
        f"The published descent ends at a distance from s* of {np.median(error):.1e} (median) and {error.max():.1e} "
        "(largest).",
        f"{int(flow.late.sum())} of {error.size} flows are not within 5e-9 of s* at log t = 30, and are followed along "
        "the arc length.",
    ]


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation coefficient; 0 where one of the two does not vary."""
    if a.size < 2 or not np.ptp(a) > 0 or not np.ptp(b) > 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
