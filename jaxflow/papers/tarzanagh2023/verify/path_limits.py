"""Regularisation paths, the least of those from several starts, and the statement that they tend to a solution."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxflow.data import TokenData, optimal_tokens
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult
from jaxflow.models import CombinedAttention, FactoredAttention, token_scores
from jaxflow.papers.statement import Mask, Statement
from jaxflow.papers.tarzanagh2023.verify.path_instances import apart, choices_of_tokens, factors, programs_of, unit
from jaxflow.papers.tarzanagh2023.verify.regularization_path import PathStatus, RegularizationPath, regularization_path
from jaxflow.papers.verdicts import Rate, common_rate
from jaxflow.risk import EmpiricalRisk

N = TypeVar("N")

# W̄_R = R W^mm/‖W^mm‖ + O(1): distances of directions fall like 1/R. Read over this many steps of the bound.
LAST = 3
SLOPE = -0.9
# No larger at the end than this many times 1/R; constants are of the order of ‖W^mm‖² log(T/gap).
NEAR = 1e-2
# Distances that have reached rounding fall no further.
FLOOR = 1e-7
# Objectives within this of the least, relative to it, are the least: points are stationary to 1e-6.
LEAST = 1e-6


class Paths(NamedTuple):
    r"""Paths of b instances at m bounds R, of k cells: at each bound the point of the least risk of all starts.

    - `radii`: the bounds; `starts`: how many each path has; `inside`: whether the hypotheses hold.
    - `found`: whether some start leads to a stationary point; `residual`: the relative gradient that is left.
    - `distance`: of the unit matrices of the point and of the program's solution; `above`: by how much the norm of the
      point at margin one is above the program's optimum, relative to it, NaN where the solution is unique.
    - `elsewhere`: how many starts are at the last bound on other local paths or none.
    - `size`: $\|W\|_\star/R$; `balance`: $\|K^\top K-Q^\top Q\|_F/R$, zero for W; `slack`: the least of the
      constraint, +inf without one.
    - `flows`: of f starts of the flow, whether it is certified for the solution's direction.
    """

    radii: Float[Any, "*k m"]
    starts: Int[Any, "*k"]
    inside: Bool[Any, "*k b"]
    found: Bool[Any, "*k b m"]
    residual: Float[Any, "*k b m"]
    distance: Float[Any, "*k b m"]
    above: Float[Any, "*k b m"]
    elsewhere: Int[Any, "*k b"]
    size: Float[Any, "*k b m"]
    balance: Float[Any, "*k b m"]
    slack: Float[Any, "*k b m"]
    flows: Bool[Any, "*k b f"]

    @property
    def direct(self) -> Mask:
        """Which paths tend to the program's solution."""
        end = self.distance[:, -1]
        falls = (rate_of(self.radii, self.distance) <= SLOPE) | (end <= FLOOR)
        return self.found[:, -1] & (end <= NEAR) & falls

    @property
    def others(self) -> Mask:
        """Which tend to another solution: their norm at margin one tends to the optimum."""
        falls = (np.abs(self.above[:, -1]) <= NEAR) & (rate_of(self.radii, self.above) <= SLOPE)
        return self.inside & self.found[:, -1] & ~self.direct & falls

    @property
    def end(self) -> np.ndarray:
        """What is left at the last bound; NaN of those that are near and do not fall, or were not found."""
        end = np.where(self.others, self.above[:, -1], self.distance[:, -1])
        return np.where(self.direct | self.others | (self.found[:, -1] & (end > NEAR)), end, np.nan)

    @property
    def rates(self) -> np.ndarray:
        """Exponents of R in the distances, of those inside that do not tend to another solution."""
        return rate_of(self.radii, self.distance)[self.inside & ~self.others]


class PathOf(NamedTuple):
    """What a part keeps of one instance: its `Paths`, which have no flows, with bounds and number of starts."""

    radii: Float[Any, "*b m"]
    starts: Int[Any, "*b"]
    inside: Bool[Any, "*b"]
    found: Bool[Any, "*b m"]
    residual: Float[Any, "*b m"]
    distance: Float[Any, "*b m"]
    above: Float[Any, "*b m"]
    elsewhere: Int[Any, "*b"]
    size: Float[Any, "*b m"]
    balance: Float[Any, "*b m"]
    slack: Float[Any, "*b m"]

    @staticmethod
    def each(paths: Paths) -> "PathOf":
        """Of every instance of one cell."""
        count = len(paths.inside)
        bounds, starts = np.tile(paths.radii, (count, 1)), np.full(count, paths.starts)
        return PathOf(*(getattr(paths, name) for name in PathOf._fields))._replace(radii=bounds, starts=starts)

    def paths(self) -> Paths:
        """Of `(k, b)` instances."""
        flows = np.zeros((*self.inside.shape, 0), bool)
        return Paths(**self._asdict(), flows=flows)._replace(radii=self.radii[:, 0], starts=self.starts[:, 0])


def rate_of(radii: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Exponent of the distances `(..., m)` as a power of the bound, over its last steps."""
    last = slice(-1 - LAST, None)
    logs = np.log(np.maximum(distance[..., last], 1e-300))
    x = np.log(radii[last]) - np.log(radii[last]).mean()
    # Of infinite ones there is no exponent.
    with np.errstate(invalid="ignore"):
        return (logs * x).sum(axis=-1) / (x**2).sum()


def tends(
    source: str, says: str, paths: Callable[[N], Paths], more: Callable[[N], str] = lambda numbers: ""
) -> Statement[N]:
    """That these paths tend to the solution of their program; `more` is told besides."""

    def rate(numbers: N, known: Mask) -> Rate | None:
        return common_rate(-paths(numbers).rates, 1.0, bias=1.0 + SLOPE, law="distance of unit matrices against R")

    return Statement(
        source=source,
        says=says,
        inside=lambda n: paths(n).inside,
        residual=lambda n: paths(n).end,
        bound=NEAR,
        unit="distance of unit matrices at the largest R",
        limit=True,
        rate=rate,
        # One that does not approach it may have been followed too short, or by another path than the least: it is open,
        # unless it is more than a right angle away.
        late=math.sqrt(2.0),
    )


class Followed(NamedTuple):
    """Of one instance: `weights` and `margin`, the least of the selected tokens, of the least path; `status`
    (`PathStatus`) and `objective` of all s starts; the others as in `Paths`, `balance` without the division by R."""

    weights: Float[Any, "*b m d d"]
    margin: Float[Any, "*b m"]
    status: Int[Any, "*b s m"]
    objective: Float[Any, "*b s m"]
    found: Bool[Any, "*b m"]
    residual: Float[Any, "*b m"]
    slack: Float[Any, "*b m"]
    balance: Float[Any, "*b m"]


def followed(path: RegularizationPath, data: TokenData, selection: Array) -> Followed:
    """Of the paths from all starts of an instance, towards the selected tokens."""
    least, column = path.path, jnp.arange(path.radii.size)
    logits = jax.vmap(lambda model: model.logits(data))(least)
    own = jnp.sum(jnp.where(selection, logits, 0.0), axis=-1, keepdims=True)
    balance = jnp.zeros(path.radii.size)
    if isinstance(least, FactoredAttention):
        grams = [jnp.swapaxes(factor, 1, 2) @ factor for factor in (least.K, least.Q)]
        balance = jnp.sqrt(jnp.sum((grams[0] - grams[1]) ** 2, axis=(1, 2)))
    return Followed(
        weights=jax.vmap(lambda model: model.combined_weights())(least),
        margin=jnp.min(jnp.where(selection, jnp.inf, own - logits), axis=tuple(range(1, logits.ndim))),
        status=path.status.value,
        objective=path.objective,
        found=path.found,
        residual=path.residual[path.best, column],
        slack=path.slack[path.best, column],
        balance=balance,
    )


def paths_of(
    given: Any, radii: np.ndarray, inside: Mask, aim: np.ndarray, *, several: bool = False, flows: Any = None
) -> Paths:
    """The numbers of `Followed` paths at bounds `(m,)` or `(b, m)` on the nuclear norm, if that is what is bounded,
    that should tend to `aim` `(b, d, d)`; `several`: the program may have other solutions of that norm."""
    one = Followed(*map(np.asarray, given))
    stationary = one.status[..., -1] == PathStatus.stationary.value
    objective = one.objective[..., -1]
    least = np.where(stationary, objective, np.inf).min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        reached = stationary & (objective <= least + LEAST * np.abs(least))
    return Paths(
        radii=radii,
        starts=np.asarray(one.status.shape[1]),
        inside=inside,
        found=one.found,
        residual=one.residual,
        distance=apart(one.weights, aim[:, None]),
        above=above_optimum(radii, one.margin, aim) if several else np.full(one.margin.shape, np.nan),
        elsewhere=np.sum(~reached, axis=1),
        size=np.linalg.norm(one.weights, ord="nuc", axis=(-2, -1)) / radii,
        balance=one.balance / radii,
        slack=one.slack,
        flows=np.zeros((len(inside), 0), bool) if flows is None else flows,
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


class Starts(NamedTuple):
    """Of b instances: `matrices` that separate each choice of tokens, or point towards it; `result` and solution `aim`
    of the optimal tokens' program."""

    matrices: Float[Any, "b s d d"]
    result: Int[Any, " b"]
    aim: Float[Any, "b d d"]

    @property
    def solved(self) -> Mask:
        """The program of the optimal tokens has a solution."""
        return self.result == ProgramResult.optimal.value


def all_starts(data: TokenData, heads: Any) -> Starts:
    """From every choice of tokens of a batch of instances."""
    best = np.asarray(jax.vmap(lambda a, v: optimal_tokens(token_scores(a, v), a.visible))(data, heads))
    chosen, T = best.argmax(axis=-1).reshape(len(best), -1), best.shape[-1]
    outputs, rows = chosen.shape[1], np.arange(len(best))
    found = {name: np.asarray(x) for name, x in programs(data, heads, choices_of_tokens(outputs, T)).items()}
    solved = (found["result"] == ProgramResult.optimal.value)[..., None, None]
    which = np.ravel_multi_index(tuple(chosen.T), (T,) * outputs)
    return Starts(
        unit(np.where(solved, found["weights"], found["push"])),
        found["result"][rows, which],
        found["weights"][rows, which],
    )


@partial(jax.jit, static_argnames="norm")
def programs(data: TokenData, heads: Any, choices: Any, norm: str = "frobenius") -> dict[str, Array]:
    """`programs_of` for a batch."""
    return jax.vmap(lambda a, v: programs_of(a, v, choices, norm))(data, heads)


def combined_paths(data: TokenData, heads: Any, starts: Any, radii: Any) -> Followed:
    """Paths of W from each of the starts, to ‖W‖_F = R."""
    return _paths_from(data, heads, (starts,), radii)


def factored_paths(data: TokenData, heads: Any, starts: np.ndarray, columns: int, radii: np.ndarray) -> Followed:
    """Paths of (K, Q) from factors of the starts, to ‖K‖² + ‖Q‖² = 2R."""
    return _paths_from(data, heads, factors(starts, columns), radii)


@jax.jit
def _paths_from(data: TokenData, heads: Any, weights: tuple[Any, ...], radii: Any) -> Followed:
    def one(a: TokenData, v: Any, own: tuple[Array, ...]) -> Followed:
        best = optimal_tokens(token_scores(a, v), a.visible)
        models = [model_of([x[s] for x in own], v) for s in range(own[0].shape[0])]
        sizes = sizes_of(own, radii)
        return followed(regularization_path(EmpiricalRisk(a, Logistic()), models, sizes, reference=best), a, best)

    return jax.vmap(one)(data, heads, weights)


def model_of(weights: Sequence[Array], head: Any) -> CombinedAttention | FactoredAttention:
    """Of W alone, or of K and Q."""
    if len(weights) == 1:
        return CombinedAttention(weights[0], head)
    return FactoredAttention(weights[0], weights[1], head)


def sizes_of(weights: Sequence[Array], radii: Array) -> Array:
    """Bounds R as bounds on the Euclidean norm of W, or of (K, Q)."""
    return radii if len(weights) == 1 else jnp.sqrt(2.0 * radii)
