"""Regularisation paths, the least of those from several starts, and the statement that they tend to a solution."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import TokenData
from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, FactoredAttention
from jaxflow.papers.experiment import Mask, Statement, Table, common_rate, mapped, power_laws
from jaxflow.papers.tarzanagh2023.programs import best_of, solved
from jaxflow.papers.tarzanagh2023.verify.instances import apart, choices_of_tokens, factors, programs_of, unit
from jaxflow.papers.tarzanagh2023.verify.regularization_path import RegularizationPath, regularization_path
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import subkey

# W̄_R = R W^mm/‖W^mm‖ + O(1): distances of directions fall like 1/R. Read over this many steps of the bound.
LAST = 3
SLOPE = -0.9
# No larger at the end than this many times 1/R; constants are of the order of ‖W^mm‖² log(T/gap).
NEAR = 1e-2
# Distances that have reached rounding fall no further.
FLOOR = 1e-7
# Of starts in (K, Q). Columns beyond the rank of a start are not zero, where they would stay.
NOISE = 1e-2


def direct(paths: Table) -> Mask:
    """Which paths tend to the program's solution."""
    end = paths.distance[:, -1]
    falls = (rate_of(paths.radii, paths.distance) <= SLOPE) | (end <= FLOOR)
    return paths.found[:, -1] & (end <= NEAR) & falls


def others(paths: Table) -> Mask:
    """Which tend to another solution: their norm at margin one tends to the optimum."""
    falls = (np.abs(paths.above[:, -1]) <= NEAR) & (rate_of(paths.radii, paths.above) <= SLOPE)
    return paths.inside & paths.found[:, -1] & ~direct(paths) & falls


def end_of(paths: Table) -> np.ndarray:
    """What is left at the last bound; NaN of those that are near and do not fall, or were not found."""
    end = np.where(others(paths), paths.above[:, -1], paths.distance[:, -1])
    return np.where(direct(paths) | others(paths) | (paths.found[:, -1] & (end > NEAR)), end, np.nan)


def rate_of(radii: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Exponent of the distances `(b, m)` as a power of the bounds `(b, m)`, over the last steps of these."""
    last = slice(-1 - LAST, None)
    return power_laws(np.log(radii[:, last]), np.maximum(distance[:, last], 1e-300))[0]


def tends(
    source: str, says: str, paths: Callable[[Table], Table], found: Callable[[Table, Mask], str] | None = None
) -> Statement[Table]:
    """That these paths tend to the solution of their program; `found`: what is told besides the rate."""
    return Statement(
        source=source,
        says=says,
        of=paths,
        inside=lambda one: one.inside,
        residual=end_of,
        bound=(NEAR, "distance of unit matrices at the largest R"),
        found=found,
        # Of those inside that do not tend to another solution.
        rate=lambda one, known: common_rate(
            -rate_of(one.radii, one.distance)[one.inside & ~others(one)],
            1.0,
            bias=1.0 + SLOPE,
            law="distance of unit matrices against R",
        ),
        # One that does not approach it may have been followed too short, or by another path than the least: it is open,
        # unless it is more than a right angle away.
        late=math.sqrt(2.0),
    )


def followed(path: RegularizationPath, data: TokenData, selection: Array) -> Table:
    """Of the paths from all starts of an instance, towards the selected tokens, at m bounds.

    `weights` `(m, d, d)` and `margin`, the least of the selected tokens, of the least path; `found` `(m,)` as in
    `paths_of`, and `balance` without the division by R.
    """
    least = path.path
    logits = jax.vmap(lambda model: model.logits(data))(least)
    own = jnp.sum(jnp.where(selection, logits, 0.0), axis=-1, keepdims=True)
    balance = jnp.zeros(logits.shape[0])
    if isinstance(least, FactoredAttention):
        grams = [jnp.swapaxes(factor, 1, 2) @ factor for factor in (least.K, least.Q)]
        balance = jnp.sqrt(jnp.sum((grams[0] - grams[1]) ** 2, axis=(1, 2)))
    return Table(
        weights=jax.vmap(lambda model: model.combined_weights())(least),
        margin=jnp.min(jnp.where(selection, jnp.inf, own - logits), axis=tuple(range(1, logits.ndim))),
        found=path.found,
        balance=balance,
    )


def paths_of(
    given: Table, radii: np.ndarray, inside: Mask, aim: np.ndarray, *, several: bool = False, flows: Any = None
) -> Table:
    r"""The least of `followed` paths of b instances at bounds `(m,)` or `(b, m)` on the nuclear norm, if that is what
    is bounded, that should tend to `aim` `(b, d, d)`; `several`: the program may have other solutions of that norm.

    - `radii` `(b, m)`: the bounds; `inside`: whether the hypotheses hold.
    - `found` `(m,)`: whether some start leads to a stationary point.
    - `distance` `(m,)`: of the unit matrices of the point and of the program's solution; `above`: by how much the norm
      of the point at margin one is above the program's optimum, relative to it, NaN where the solution is unique.
    - `size` `(m,)`: $\|W\|_\star/R$; `balance`: $\|K^\top K-Q^\top Q\|_F/R$, zero for W.
    - `flows` `(f,)`: of f starts of the flow, whether it is certified for the solution's direction.
    """
    one = jax.tree.map(np.asarray, given)
    more = {} if flows is None else {"flows": flows}
    return Table(
        radii=np.array(np.broadcast_to(radii, one.margin.shape)),
        inside=inside,
        found=one.found,
        distance=apart(one.weights, aim[:, None]),
        above=above_optimum(radii, one.margin, aim) if several else np.full(one.margin.shape, np.nan),
        size=np.linalg.norm(one.weights, ord="nuc", axis=(-2, -1)) / radii,
        balance=one.balance / radii,
        **more,
    )


def above_optimum(radii: np.ndarray, margin: np.ndarray, aim: np.ndarray) -> np.ndarray:
    r"""By how much the nuclear norm at margin one of paths with $\|W\|_\star=R$ is above that of their program.

    **Arguments:** `radii` `(m,)`; `margin` `(instances, m)`: the least of the selected tokens; `aim`: the program's
    solutions. **Returns:** `(instances, m)`, +inf where the margin is not positive yet.
    """
    optimum = np.linalg.norm(aim, ord="nuc", axis=(1, 2))[:, None]
    with np.errstate(divide="ignore"):
        above = radii / margin / np.where(optimum > 0, optimum, 1.0) - 1.0
    return np.where((margin > 0) & (optimum > 0), above, np.inf)


def all_starts(data: TokenData, heads: Any) -> Table:
    """From every choice of tokens of a batch of instances: `matrices` `(s, d, d)` that separate the choice, or point
    towards it; solution `aim` of the optimal tokens' program, and whether that is `solved`."""
    best = np.asarray(jax.vmap(best_of)(data, heads))
    chosen, T = best.argmax(axis=-1).reshape(len(best), -1), best.shape[-1]
    outputs, rows = chosen.shape[1], np.arange(len(best))
    found = jax.tree.map(np.asarray, programs("frobenius", data, heads, choices_of_tokens(outputs, T)))
    known = solved(found.result)
    which = np.ravel_multi_index(tuple(chosen.T), (T,) * outputs)
    return Table(
        matrices=unit(np.where(known[..., None, None], found.weights, found.push)),
        solved=known[rows, which],
        aim=found.weights[rows, which],
    )


@mapped(static=1, axes=(0, 0, None))
def programs(norm: str, data: TokenData, heads: Any, choices: Any) -> Table:
    """`programs_of` for a batch."""
    return programs_of(data, heads, choices, norm)


def combined_paths(data: TokenData, heads: Any, radii: np.ndarray, flows: Any = None) -> Table:
    """`paths_of` W from every choice of tokens towards the optimal ones, to ‖W‖_F = R; `flows` is a function of the
    data, the heads and the points `(b, m, d, d)`."""
    starts = all_starts(data, heads)
    found = _paths_from(data, heads, (starts.matrices,), radii)
    more = flows(data, heads, found.weights) if flows else None
    return paths_of(found, radii, starts.solved, starts.aim, flows=more)


def factored_paths(
    keys: Array, data: TokenData, heads: Any, columns: int, radii: np.ndarray, inside: Mask, aim: np.ndarray
) -> Table:
    """The same of (K, Q), to ‖K‖² + ‖Q‖² = 2R, from factors of the same matrices and noise that `keys` draw."""
    matrices = all_starts(data, heads).matrices
    noise = np.asarray(jax.vmap(lambda key: jax.random.normal(subkey(key, "noise"), matrices.shape[1:]))(keys))
    found = _paths_from(data, heads, factors(matrices + NOISE * noise, columns), radii)
    return paths_of(found, radii, inside, aim, several=True)


@mapped(axes=(0, 0, 0, None))
def _paths_from(data: TokenData, heads: Any, weights: tuple[Array, ...], radii: Any) -> Table:
    best = best_of(data, heads)
    models = [model_of([x[s] for x in weights], heads) for s in range(weights[0].shape[0])]
    sizes = sizes_of(weights, radii)
    path = regularization_path(EmpiricalRisk(data, Logistic()), models, sizes, reference=best)
    return followed(path, data, best)


def model_of(weights: Sequence[Array], head: Any) -> CombinedAttention | FactoredAttention:
    """Of W alone, or of K and Q."""
    if len(weights) == 1:
        return CombinedAttention(weights[0], head)
    return FactoredAttention(weights[0], weights[1], head)


def sizes_of(weights: Sequence[Array], radii: Array) -> Array:
    """Bounds R as bounds on the Euclidean norm of W, or of (K, Q)."""
    return radii if len(weights) == 1 else jnp.sqrt(2.0 * radii)
