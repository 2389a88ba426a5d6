r"""Theorems 9 and 10: regularisation paths over $\mathrm{cone}_\varepsilon(\alpha)$ tend to $W^{mm}_\alpha$."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import SelectionStatus, positive_or_one
from jaxflow.data import TokenData, random_tokens
from jaxflow.data.random import unit_sphere
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult
from jaxflow.models import CombinedAttention, ConcaveHead, token_scores
from jaxflow.papers.experiment import Mask, Statement, Table, mapped, register, swept
from jaxflow.papers.tarzanagh2023.verify.follow import follow, reached
from jaxflow.papers.tarzanagh2023.verify.instances import choices_of_tokens, factors, instance, masks, padded
from jaxflow.papers.tarzanagh2023.verify.path_limits import followed, model_of, paths_of, programs, sizes_of, tends
from jaxflow.papers.tarzanagh2023.verify.regularization_path import (
    SeparatingCone,
    cone_depth,
    low_and_high,
    regularization_path,
)
from jaxflow.risk import EmpiricalRisk

# n, T, d; outputs a sequence; the norm; the curvature of convex heads; whether the choice is the optimal tokens, where
# the cone is all of R^(d×d).
PLAIN = Table(shape=(3, 4, 3), outputs=1, norm="frobenius", convex=0.0, optimal=False)
SEQUENCES = PLAIN.replace(shape=(2, 3, 4), outputs=2, convex=0.25)
CELLS = {
    "frobenius": PLAIN,
    "nuclear": PLAIN.replace(norm="nuclear"),
    "sequence": SEQUENCES,
    "optimal": SEQUENCES.replace(optimal=True),
}
INSTANCES = {"quick": 5, "paper": 12, "large": 256}
# Choices tried on each instance; where there are fewer locally-optimal ones, all.
CHOICES = 3
# Bounds from R_0 on, each so many times the last.
LEVELS, GROWTH = 6, 4.0
# Beside W^mm_α paths start from random directions, moved towards it until they are inside the cone.
RANDOM = 2
BLENDS = np.linspace(0.0, 1.0, 11)
# ε in units of the largest for which W^mm_α is in the cone; starts keep this much of a distance from its boundary.
SHARE, CLEAR = 0.5, 1.05


def _chosen(name: str, scale: str, key: Any) -> tuple[int, Table]:
    r"""Choices of tokens of the instances of a cell: how many, and a table that is filled up to a common size.

    `data`, `head`, `choice`; `aim`, its program's solution, and its `depth` in the cone, the largest ε; `first`:
    $R_0=\log(BT/c_\alpha)/\varepsilon_\diamond$; `starts` of its paths, with barring tokens `low`.
    """
    cell, instances = CELLS[name], INSTANCES[scale]
    n, T, d = cell.shape
    key_data, key_pick, key_start = jax.random.split(jax.random.fold_in(key, list(CELLS).index(name)), 3)
    data, head = _draw(cell, jax.random.split(key_data, instances))
    choices = choices_of_tokens(n * cell.outputs, T)
    found = jax.tree.map(np.asarray, programs(cell.norm, data, head, choices))
    wanted = SelectionStatus.global_ if cell.optimal else SelectionStatus.local
    local = (found.status == wanted.value) & (found.result == ProgramResult.optimal.value)
    pairs = []
    for i in range(instances):
        order = np.asarray(jax.random.permutation(jax.random.fold_in(key_pick, i), np.flatnonzero(local[i])))
        pairs += [(i, int(j)) for j in order[:CHOICES]]
    # One size for all seeds, so that one program serves them: the first pair fills up.
    real = len(pairs)
    rows, columns = np.asarray([*pairs, *[pairs[0] if pairs else (0, 0)] * (CHOICES * instances - real)]).T
    data, head = jax.tree.map(lambda x: x[rows], (data, head))
    choice, aim = jnp.asarray(choices[columns]), found.weights[rows, columns]
    noise = np.asarray(jax.random.normal(key_start, (len(rows), RANDOM, d, d)))
    more = jax.tree.map(np.asarray, _starts(cell, data, head, choice, aim, noise).named)
    return real, Table(data=data, head=head, choice=choice, aim=aim, **more)


@mapped(static=1)
def _draw(cell: Table, key: Array) -> Any:
    n, T, d = cell.shape
    if cell.outputs == 1:
        return random_tokens(key, n, T, d)
    key_tokens, key_queries, key_heads = jax.random.split(key, 3)
    shape = (n, cell.outputs)
    # Convex heads preserve the top score where labels are positive (Assumption E).
    data = TokenData(unit_sphere(key_tokens, n, T, d), unit_sphere(key_queries, *shape, d), jnp.ones(shape))
    return data, [ConcaveHead(v, -cell.convex) for v in unit_sphere(key_heads, cell.outputs, d)]


@mapped(static=1)
def _starts(cell: Table, data: TokenData, head: Any, choice: Array, W: Array, noise: Array) -> Table:
    """Columns of `_chosen` from `depth` on."""
    selection = masks(choice[None], data)[0]
    scores = token_scores(data, head)
    low, high = low_and_high(scores, data.visible, selection)
    size = jnp.linalg.norm(W)
    unit_W = W / positive_or_one(size)

    def depth_of(V: Array) -> tuple[Array, Array]:
        return cone_depth(CombinedAttention(V, jnp.zeros(W.shape[0])).logits(data), low, high)

    depth, _ = depth_of(unit_W)
    own = jnp.sum(jnp.where(selection, scores, 0.0), axis=-1)
    # (87), and (90) with the head's Lipschitz constant on the unit ball.
    least = jnp.min(own - jnp.max(jnp.where(low, scores, -jnp.inf), axis=-1))
    pairs = data.tokens[:, :, None] - data.tokens[:, None]
    lipschitz = 1.0 + 2.0 * cell.convex
    B = lipschitz * jnp.sqrt(jnp.max(jnp.sum(pairs**2, axis=-1)))
    share = 1.0 if cell.norm == "frobenius" else W.shape[0] ** -0.5
    epsilon = SHARE * depth * share
    bound = jnp.maximum(jnp.log(B * data.tokens.shape[1] / least), 1.0) / jnp.where(epsilon > 0, epsilon, jnp.nan)
    # Without a cone any bound will do: that of margin one.
    bound = jnp.where(jnp.isinf(depth) & (depth > 0), size, bound)

    def blended(V: Array) -> tuple[Array, Array]:
        V = V / jnp.linalg.norm(V)
        line = jnp.asarray(BLENDS)[:, None, None]
        points = (1.0 - line) * V + line * unit_W
        points = points / jnp.sqrt(jnp.sum(points**2, axis=(1, 2), keepdims=True))
        depths, bars = jax.vmap(depth_of)(points)
        first = jnp.argmax(depths > CLEAR * SHARE * depth)
        return points[first], bars[first]

    starts, bars = jax.vmap(blended)(jnp.concatenate([unit_W[None], noise]))
    return Table(depth=depth, first=bound, low=bars, starts=starts)


@mapped()
def _follow(data: TokenData, head: Any, choice: Array, starts: Any, low: Array, epsilon: Array, radii: Array) -> Table:
    """Paths of W, or of factors K, Q, from each start in the cone of its barring tokens."""
    selection = masks(choice[None], data)[0]
    _, high = low_and_high(token_scores(data, head), data.visible, selection)
    risk = EmpiricalRisk(data, Logistic())

    def start(weights: Any, bar: Array) -> Any:
        cone, size = SeparatingCone(data, bar, high, epsilon), sizes_of(weights, radii)
        return regularization_path(risk, [model_of(weights, head)], size, reference=selection, constraint=cone)

    # One start a call, each with a cone of its own: their axis is the first of two.
    paths = jax.tree.map(lambda x: x[:, 0], jax.vmap(start)(starts, low))
    return followed(paths, data, selection)


def _paths(name: str, scale: str, key: Any) -> Table:
    cell, (real, given) = CELLS[name], _chosen(name, scale, key)
    # What is kept of a path outside of the hypotheses means nothing, but must have a size.
    usable = np.where(np.isfinite(given.first) & (given.first > 0), given.first, 1.0)
    grown = GROWTH ** np.arange(LEVELS)
    radii = usable[:, None] * grown
    epsilon = np.where(np.isfinite(given.depth) & (given.depth > 0), SHARE * given.depth, 0.0)
    starts = (given.starts,) if cell.norm == "frobenius" else factors(given.starts, cell.shape[2])
    found = _follow(given.data, given.head, given.choice, starts, given.low, epsilon, radii)
    flows = None
    if name == "frobenius":
        target = jax.vmap(lambda choice, a: masks(choice[None], a)[0])(given.choice, given.data)
        instances = jax.vmap(lambda *one: padded(instance(*one)))(given.data, given.head, found.weights[:, 0], target)
        flows = reached(follow(instances))[:real, None]
    found, radii, depth, aim = jax.tree.map(lambda x: x[:real], (found, radii, given.depth, given.aim))
    paths = paths_of(found, radii, depth > 0, aim, flows=flows)
    return paths.replace(radii=np.tile(grown, (real, 1)))


# ε is half of what $W^{mm}_\alpha$ allows, $R_0$ that of the proof. Of each cell the `Paths` `(b, m)` of its choices,
# in units of $R_0$; in the first one with the flow from the path's point at $R_0$.
LOCAL_PATHS = swept("tarzanagh2023", "local-paths", **{name: partial(_paths, name) for name in CELLS})


def tend(name: str) -> Statement[Table]:
    """Of one cell."""
    cell = CELLS[name]
    n, T, d = cell.shape
    what = "α = opt, all of R^(d×d)" if cell.optimal else "locally-optimal α ≠ opt, ε half of W^mm_α's own"
    how = "‖W‖_F ≤ R" if cell.norm == "frobenius" else f"‖W‖_* ≤ R by K, Q with {d} columns"
    heads = f", {cell.outputs} outputs a sequence, convex heads v·x + {cell.convex:g}‖x‖²"
    says = (
        f"W̄_R/(RΞ) → W^mm_α over the cone, {how}: {what}, n = {n}, T = {T}, d = {d}"
        f"{heads * (cell.outputs > 1)}; R in units of R_0"
    )

    def same(paths: Table, known: Mask) -> str:
        return f"the flow from W̄_R at R_0 tends to it in {np.sum(paths.flows[known])} of {known.sum()}"

    source = "Theorem 10" if cell.outputs > 1 else "Theorem 9"
    found = same if name == "frobenius" else None
    return tends(source, says, lambda n: getattr(n, name), found)


register(LOCAL_PATHS, title="Theorems 9 and 10", statements=[tend(name) for name in CELLS])
