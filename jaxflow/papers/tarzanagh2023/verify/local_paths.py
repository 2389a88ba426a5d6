r"""Theorems 9 and 10: regularisation paths over $\mathrm{cone}_\varepsilon(\alpha)$ tend to $W^{mm}_\alpha$."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import SelectionStatus
from jaxflow.data import TokenData, random_tokens
from jaxflow.limits import PathStatus, SeparatingCone, cone_depth, low_and_high, regularization_path
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult
from jaxflow.models import CombinedAttention, ConcaveHead, FactoredAttention, token_scores
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.follow import CERTIFIED, SHAPE, follow
from jaxflow.papers.tarzanagh2023.verify.instances import Instance, padded
from jaxflow.papers.tarzanagh2023.verify.path_instances import apart, choices_of_tokens, factors, masks, programs_of
from jaxflow.papers.tarzanagh2023.verify.path_rows import row_of_path
from jaxflow.risk import EmpiricalRisk


@dataclasses.dataclass(frozen=True)
class Cell:
    """A setting: n, T, d; outputs a sequence; the norm; the curvature of convex heads."""

    shape: tuple[int, int, int]
    outputs: int = 1
    norm: str = "frobenius"
    convex: float = 0.0


SEQUENCES = Cell((2, 3, 4), outputs=2, convex=0.25)
# Statement, setting, and whether the choice is the optimal tokens, where the cone is all of R^(d×d).
CELLS = {
    "frobenius": ("Theorem 9", Cell((3, 4, 3)), False),
    "nuclear": ("Theorem 9", Cell((3, 4, 3), norm="nuclear"), False),
    "sequence": ("Theorem 10", SEQUENCES, False),
    "optimal": ("Theorem 10", SEQUENCES, True),
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


@register_check("tarzanagh2023", "local-paths", statements="Theorems 9 and 10")
class LocalPaths(AbstractCheck):
    r"""ε is half of what $W^{mm}_\alpha$ allows, $R_0=\log(BT/c_\alpha)/\varepsilon_\diamond$ that of the proof."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        found: Data = {}
        for number, (name, (source, cell, optimal)) in enumerate(CELLS.items()):
            n, T, d = cell.shape
            say(
                f"{source}: {'optimal' if optimal else 'locally-optimal'} choices of {INSTANCES[scale]} "
                f"instances with n, T, d = {n}, {T}, {d}, {cell.outputs} outputs each, {cell.norm} norm"
            )
            part = _cell(cell, optimal, INSTANCES[scale], jax.random.fold_in(key, number))
            found |= {f"{name}_{what}": value for what, value in part.items()}
        return found

    def rows(self, data: Data) -> list[Row]:
        return [_row(data, name, *what) for name, what in CELLS.items()]


def _cell(cell: Cell, optimal: bool, instances: int, key: Any) -> Data:
    n, T, d = cell.shape
    key_data, key_pick, key_start = jax.random.split(key, 3)
    data, head = _draw(cell, jax.random.split(key_data, instances))
    choices = choices_of_tokens(n * cell.outputs, T)
    programs = {name: np.asarray(x) for name, x in _programs(cell, data, head, choices).items()}
    wanted = (SelectionStatus.global_.value,) if optimal else (SelectionStatus.local.value,)
    local = np.isin(programs["status"], wanted) & (programs["result"] == ProgramResult.optimal.value)
    pairs = []
    for i in range(instances):
        order = np.asarray(jax.random.permutation(jax.random.fold_in(key_pick, i), np.flatnonzero(local[i])))
        pairs += [(i, int(j)) for j in order[:CHOICES]]
    # One size for all seeds, so that one program serves them: the first pair fills up.
    real = len(pairs)
    which = np.asarray([*pairs, *[pairs[0] if pairs else (0, 0)] * (CHOICES * instances - real)])
    data, head = jax.tree.map(lambda x: x[which[:, 0]], (data, head))
    aim = programs["weights"][which[:, 0], which[:, 1]]
    noise = np.asarray(jax.random.normal(key_start, (len(which), RANDOM, d, d)))
    found = _paths(cell, data, head, jnp.asarray(choices[which[:, 1]]), aim, noise)
    out = {name: np.asarray(x)[:real] for name, x in found.items()} | {"aim": aim[:real]}
    out |= {"shape": np.asarray(cell.shape), "local": local.sum(axis=1), "empty": _empty(programs, which)[:real]}
    if cell.norm == "frobenius" and cell.outputs == 1:
        target = masks_of(jnp.asarray(choices[which[:, 1]]), data)
        given = jax.vmap(lambda *parts: padded(Instance(*parts), SHAPE))(
            data, head, jnp.asarray(found["weights"][:, 0]), target
        )
        ends = follow(given)._asdict()
        out |= {f"flow_{name}": ends[name][:real] for name in ("selected", "misaligned", "flow_gap")}
    return out


def _empty(programs: Data, which: np.ndarray) -> np.ndarray:
    """Whether some query has no support token."""
    support = programs["support"][which[:, 0], which[:, 1]]
    return np.any(~support.any(axis=-1), axis=tuple(range(1, support.ndim - 1)))


@partial(jax.jit, static_argnums=0)
def _draw(cell: Cell, keys: Array) -> Any:
    n, T, d = cell.shape

    def one(key: Array) -> Any:
        if cell.outputs == 1:
            return random_tokens(key, n, T, d)
        key_tokens, key_queries, key_heads = jax.random.split(key, 3)
        shape = (n, cell.outputs)
        # Convex heads preserve the top score where labels are positive (Assumption E).
        data = TokenData(_sphere(key_tokens, n, T, d), _sphere(key_queries, *shape, d), jnp.ones(shape))
        return data, _sphere(key_heads, cell.outputs, d)

    return jax.vmap(one)(keys)


def _sphere(key: Any, *shape: int) -> Array:
    x = jax.random.normal(key, shape)
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def head_of(cell: Cell, head: Any) -> Any:
    """The head of an instance, or one for each output."""
    if cell.outputs == 1:
        return head
    return [ConcaveHead(head[k], -cell.convex) for k in range(cell.outputs)]


def masks_of(chosen: Any, data: TokenData) -> Array:
    """One choice for each member of a batch."""
    return jax.vmap(lambda choice, a: masks(choice[None], a)[0])(chosen, data)


@partial(jax.jit, static_argnums=0)
def _programs(cell: Cell, data: TokenData, head: Any, choices: Any) -> dict[str, Array]:
    return jax.vmap(lambda a, v: programs_of(a, head_of(cell, v), choices, cell.norm))(data, head)


def _paths(cell: Cell, data: TokenData, head: Any, chosen: Any, aim: np.ndarray, noise: np.ndarray) -> dict[str, Array]:
    depth, bound, low, starts = (np.asarray(x) for x in _starts(cell, data, head, chosen, aim, noise))
    m = cell.shape[2]
    K, Q = factors(starts, m)
    # What is kept of a path outside of the hypotheses means nothing, but must have a size.
    usable = np.where(np.isfinite(bound) & (bound > 0), bound, 1.0)
    radii = usable[:, None] * GROWTH ** np.arange(LEVELS)
    epsilon = np.where(np.isfinite(depth) & (depth > 0), SHARE * depth, 0.0)
    found = _follow(cell, data, head, chosen, starts, K, Q, low, epsilon, radii)
    return dict(found) | {"depth": jnp.asarray(depth), "bound": jnp.asarray(bound), "radii": jnp.asarray(radii)}


@partial(jax.jit, static_argnums=0)
def _starts(cell: Cell, data: TokenData, head: Any, chosen: Any, aim: Any, noise: Any) -> tuple[Array, ...]:
    """Depths of the aims in their cones, R_0, barring tokens of all starts, and the starts."""

    def one(a: TokenData, v: Any, choice: Array, W: Array, noise: Array) -> tuple[Array, ...]:
        selection = masks(choice[None], a)[0]
        scores = token_scores(a, head_of(cell, v))
        low, high = low_and_high(scores, a.visible, selection)
        size = jnp.linalg.norm(W)
        unit_W = W / jnp.where(size > 0, size, 1.0)

        def depth_of(V: Array) -> tuple[Array, Array]:
            return cone_depth(CombinedAttention(V, jnp.zeros(W.shape[0])).logits(a), low, high)

        depth, _ = depth_of(unit_W)
        own = jnp.sum(jnp.where(selection, scores, 0.0), axis=-1)
        # (87), and (90) with the head's Lipschitz constant on the unit ball.
        least = jnp.min(own - jnp.max(jnp.where(low, scores, -jnp.inf), axis=-1))
        pairs = a.tokens[:, :, None] - a.tokens[:, None]
        lipschitz = 1.0 + 2.0 * cell.convex
        B = lipschitz * jnp.sqrt(jnp.max(jnp.sum(pairs**2, axis=-1)))
        share = 1.0 if cell.norm == "frobenius" else W.shape[0] ** -0.5
        epsilon = SHARE * depth * share
        bound = jnp.maximum(jnp.log(B * a.tokens.shape[1] / least), 1.0) / jnp.where(epsilon > 0, epsilon, jnp.nan)
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

        directions = jnp.concatenate([unit_W[None], noise])
        starts, bars = jax.vmap(blended)(directions)
        return depth, bound, bars, starts

    return jax.vmap(one)(data, head, chosen, aim, noise)


@partial(jax.jit, static_argnums=0)
def _follow(
    cell: Cell,
    data: TokenData,
    head: Any,
    chosen: Any,
    starts: Any,
    K: Any,
    Q: Any,
    low: Any,
    epsilon: Any,
    radii: Any,
) -> dict[str, Array]:
    def one(a: TokenData, v: Any, choice: Array, W: Array, K: Array, Q: Array, bars: Array, e: Array, r: Array) -> Any:
        selection = masks(choice[None], a)[0]
        h = head_of(cell, v)
        _, high = low_and_high(token_scores(a, h), a.visible, selection)
        risk = EmpiricalRisk(a, Logistic())

        def start(W: Array, K: Array, Q: Array, bar: Array) -> dict[str, Array]:
            model = CombinedAttention(W, h) if cell.norm == "frobenius" else FactoredAttention(K, Q, h)
            size = r if cell.norm == "frobenius" else jnp.sqrt(2.0 * r)
            cone = SeparatingCone(a, bar, high, e)
            path = regularization_path(risk, model, size, reference=selection, constraint=cone)
            flat = {
                "objective": path.objective,
                "status": path.status.value,
                "residual": path.residual,
                "slack": path.slack,
                "weights": jax.vmap(jax.vmap(lambda there: there.combined_weights()))(path.models),
            }
            return jax.tree.map(lambda x: x[0], flat)

        found = jax.vmap(start)(W, K, Q, bars)
        usable = found["status"] == PathStatus.stationary.value
        best = jnp.argmin(jnp.where(usable, found["objective"], jnp.inf), axis=0)
        column = jnp.arange(r.size)
        chosen = {name: found[name][best, column] for name in ("residual", "slack", "weights")}
        return chosen | {"objective": found["objective"], "status": found["status"], "found": jnp.any(usable, axis=0)}

    return jax.vmap(one)(data, head, chosen, starts, K, Q, low, epsilon, radii)


def _row(data: Data, name: str, source: str, cell: Cell, optimal: bool) -> Row:
    part = {key.removeprefix(f"{name}_"): value for key, value in data.items() if key.startswith(f"{name}_")}
    inside = part["depth"] > 0
    distance = apart(part["weights"], part["aim"][:, None])
    n, T, d = cell.shape
    path = {f"path_{what}": part[what] for what in ("status", "objective", "residual", "found")}
    grown = part["radii"] / part["radii"][:, :1] if len(inside) else np.ones((0, LEVELS))
    path["radii"] = GROWTH ** np.arange(LEVELS) if not len(grown) else grown[0]
    outputs = (
        "" if cell.outputs == 1 else f", {cell.outputs} outputs a sequence, convex heads v·x + {cell.convex:g}‖x‖²"
    )
    what = "α = opt, all of R^(d×d)" if optimal else "locally-optimal α ≠ opt, ε half of W^mm_α's own"
    how = "‖W‖_F ≤ R" if cell.norm == "frobenius" else f"‖W‖_* ≤ R by K, Q with {d} columns"
    more = ""
    if not optimal and inside.any():
        slack = part["slack"][inside]
        more += (
            f"; R_0 is {part['bound'][inside].min():.0f} to {part['bound'][inside].max():.0f}; the cone binds at R_0 "
            f"in {int((slack[:, 0] < 1e-3).sum())} and at the end in {int((slack[:, -1] < 1e-3).sum())}"
        )
        outer = ~inside
        more += f"; W^mm_α is outside of every cone_ε(α) in {int(outer.sum())} (some T_i empty in all of them: "
        more += f"{bool(part['empty'][outer].all())})" if outer.any() else "none)"
    if "flow_selected" in part and inside.any():
        same = part["flow_selected"] & (part["flow_flow_gap"] <= CERTIFIED)
        more += f"; the flow from W̄_R at R = R_0 tends to W^mm_α in {int((inside & same).sum())}"
    return row_of_path(
        source,
        f"W̄_R/(RΞ) → W^mm_α over the cone, {how}: {what}, n = {n}, T = {T}, d = {d}{outputs}; R in units of R_0",
        path,
        "path",
        inside,
        distance,
        more,
    )
