"""Assumptions B.1 (exactly, and by the paper's proxy) and C: how often they hold; Theorems 3 and 6 where they do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow.data import TokenData, random_tokens
from jaxflow.margin import is_locally_optimal
from jaxflow.papers.experiment import Draw, Table, keys_of, mapped, register, stacked, swept
from jaxflow.papers.independent import best_rows, least_norm, tokens_of
from jaxflow.papers.statement import BELOW_ZERO, Again, Mask, Statement
from jaxflow.papers.tarzanagh2023.programs import cosine, optimal_program, solved
from jaxflow.papers.tarzanagh2023.verify import instances as draws
from jaxflow.papers.tarzanagh2023.verify.follow import converges, follow_all, has_program

# Flows of two cells fill one batch of 32 at the quick size.
TRIALS = {"quick": 16, "paper": 256, "large": 2048}
# Assumption B.1, n = T = 5 as in figure 5.
N, T = 5, 5
DIMENSIONS = (5, 10, 20, 60, 100)
PROXY = 1.1
# A margin within this of one is support, as in Definition 2's decision.
SUPPORT = 1e-9
# How far margins are known that SciPy computes again.
SOLVED = 1e-7
# Assumption C and Theorem 6: (n, T, d).
SEPARATING = ((2, 3, 6), (3, 4, 6))


def _instances(scale: str, key: Any) -> list[tuple[Table, Array]]:
    return [_separating(*sizes, keys_of(key, 1000 + k, TRIALS[scale])) for k, sizes in enumerate(SEPARATING)]


def _unit_data(key: Array, d: Any) -> tuple[TokenData, Array]:
    return draws.unit_data(DIMENSIONS[-1], d, list(jax.random.split(key, 5)), jnp.ones(N), T)


@mapped(axes=(0, None))
def _support(key: Array, d: Any) -> Table:
    """Random instances: `result` of (Att-SVM) (`ProgramResult`); whether all tokens are support vectors (`exact`);
    `average` and `largest` margin; `push`, the cosine of ∇L(W) and W^mm at a random W."""

    *_, key_W, key_size = jax.random.split(key, 5)
    data, head = _unit_data(key, d)
    best, solution = optimal_program(data, head)
    local = is_locally_optimal(data, head, best, solution)
    margins = jnp.where(best, 0.0, 1.0 + local.excess)
    size = 10.0 ** jax.random.uniform(key_size, (), minval=-1.0, maxval=1.0)
    W = size * jax.random.normal(key_W, (head.size, head.size))
    return Table(
        result=solution.result.value,
        exact=jnp.all(local.support | best),
        average=jnp.sum(margins) / (N * (T - 1)),
        largest=jnp.max(margins),
        push=cosine(draws.scaled_gradient_of(data, head, W).gradient.W, solution.primal),
    )


@mapped(static=3)
def _separating(n: int, T: int, d: int, key: Array) -> tuple[Table, Array]:
    data, head = random_tokens(key, n, T, d)
    given = draws.instance(data, head)
    margins = draws.margins_of(data, given.target, -draws.gradient_of(data, head, given.start))
    return draws.padded(given), jnp.min(margins) > 0


# Random unit-sphere instances; those outside an assumption are counted, none is drawn again.
#
# `support`: Assumption B.1; `separating` and `flows` `(2, b)`: whether Assumption C `holds` on each of `SEPARATING`,
# and the flow.
ASSUMPTIONS = swept(
    "tarzanagh2023",
    "assumptions",
    support=lambda scale, key: stacked(_support(keys_of(key, d, TRIALS[scale]), d) for d in DIMENSIONS),
    separating=lambda scale, key: Table(holds=np.stack([x for _, x in _instances(scale, key)])),
    flows=lambda scale, key: follow_all([given for given, _ in _instances(scale, key)]),
)


def _beyond(numbers: Table) -> np.ndarray:
    """Margin − 1 of the token furthest from support where not all are support vectors; NaN without a solution."""
    found = numbers.support
    off = np.maximum(found.largest - 1.0, 0.0)
    # Which tokens are support is Definition 2's decision, whatever rounding makes of the margins at its edge.
    off = np.where(found.exact, np.minimum(off, SUPPORT), np.maximum(off, 2.0 * SUPPORT))
    return np.where(solved(found.result), off, np.nan)


def _beyond_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    d = DIMENSIONS[at[0]]
    data, head = _unit_data(keys_of(draw.key("support"), d, TRIALS[draw.scale])[at[1]], d)
    given = tokens_of(data, head)
    rows = best_rows(given)
    W = least_norm(rows)
    return np.nan if W is None else float(np.max(np.sum(rows * W, axis=(1, 2)))) - 1.0


def _support_vectors(source: str, says: str, unit: str, inside: Callable[[Table], Mask]) -> Statement[Table]:
    return Statement(
        source=source,
        says=says,
        inside=inside,
        residual=_beyond,
        bound=(SUPPORT, unit),
        again=Again("NNLS of SciPy", _beyond_again, SOLVED),
    )


PROXY_MEANS = _support_vectors(
    "Assumption B.1",
    f"an average margin below {PROXY} (the proxy of Figure 5) means that all tokens are support vectors; n = T = {N}",
    "margin − 1 of a token under the proxy",
    # The average margin is that of support vectors, nearly.
    lambda n: solved(n.support.result) & (n.support.average < PROXY),
)

BOUND = (T + N) * np.log(T + N)
ENOUGH = np.asarray(DIMENSIONS) >= BOUND

SUFFICES = _support_vectors(
    "Section 4.1",
    f"d ≥ (T + n) log(T + n) = {BOUND:.0f} will suffice for Assumption B.1, n = T = {N}",
    "margin − 1 of a token",
    lambda n: np.broadcast_to(ENOUGH[:, None], n.support.result.shape),
)

NO_STATIONARY_POINT = Statement[Table](
    source="Theorem 3",
    says=f"∇L(W) ≠ 0, by ⟨∇L(W), W^mm⟩ < 0; a random W on instances of Assumption B.1, n = T = {N}",
    inside=lambda n: solved(n.support.result) & n.support.exact,
    residual=lambda n: n.support.push,
    bound=(BELOW_ZERO, "cosine of ∇L and W^mm; below 0"),
)


def separated(number: int) -> Statement[Table]:
    """Of one size."""
    n, T, d = SEPARATING[number]
    return converges(
        "Theorem 6",
        f"Assumption C and W(0) = 0, n = {n}, T = {T}, d = {d}: the flow converges to W^mm",
        lambda n: n.flows.at(number),
        lambda n: n.separating.holds[number] & has_program(n.flows.at(number)),
    )


register(
    ASSUMPTIONS,
    title="Assumptions B.1 and C, Theorems 3 and 6",
    statements=[PROXY_MEANS, SUFFICES, NO_STATIONARY_POINT, *(separated(number) for number in range(len(SEPARATING)))],
)
