"""Limits of the three parametrisations on data of Assumption 2, with one compiled program each."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from jaxflow.data import TokenData, equal_score_tokens, optimal_tokens
from jaxflow.limits import find_limit
from jaxflow.losses import Exponential
from jaxflow.margin import ProgramResult, attention_svm, certify, solve
from jaxflow.models import CombinedAttention, FactoredAttention, token_scores
from jaxflow.papers.registry import Data
from jaxflow.papers.sheen2024.blocks import in_blocks
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import assumption_2, score_gap_needed, unbalanced_start

# n, L, d. Few dimensions: a general W separates almost always, a diagonal one often cannot.
SHAPE = (4, 4, 5)
WIDTH = 8
KINDS = ("combined", "factored", "diagonal")
NORMS = ("frobenius", "nuclear", "l1")


def follow_limits(kind: str, keys: Key[Array, " b"]) -> Data:
    r"""`find_limit` on random data of Assumption 2 with 1.1 times the gap that Assumption 3 needs, `(b, ...)`:

    - `outcome`, `stationarity`, `gap`, `flow_gap`, `log_norm`: of the limit; `size`: $\|W\|_F$ at the end.
    - `weights` `(b, d, d)`: the flow's own direction at margin one.
    - `ratio` `(b, 3)`: its Frobenius, nuclear and (for diagonal weights; else NaN) ℓ1 norm over the optima;
      `results` `(b, 3)`: of these programs; `separable` `(b, 3)`: 1 over their optima, the largest margin of a W of
      norm one; 0 where a Farkas ray proves that there is none, NaN where neither was found.
    - `equal`: slack of Assumption 2.

    W starts at zero, K and Q with random entries, diagonal weights as in (5) with $\omega_0=0.1$.
    """
    return in_blocks(partial(_block, kind), keys, WIDTH)


@eqx.filter_jit
def _block(kind: str, keys: Array) -> dict[str, Any]:
    return jax.vmap(partial(_one, kind))(keys)


def start_of(kind: str, key: Any, data: TokenData, head: Array) -> Any:
    """Where the flow of a parametrisation starts."""
    d = data.tokens.shape[-1]
    if kind == "combined":
        return CombinedAttention(jnp.zeros((d, d)), head)
    if kind == "factored":
        return FactoredAttention.init(key, data, head)
    return unbalanced_start(jnp.full(d, 0.1), head)[0]


def _one(kind: str, key: Any) -> dict[str, Any]:
    key_data, key_start = jax.random.split(key)
    n, T, d = SHAPE
    data, head = equal_score_tokens(key_data, n, T, d, 1.1 * score_gap_needed(n, T))
    model = start_of(kind, key_start, data, head)
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
    final = limit.trajectory.final
    return {
        "outcome": limit.outcome.value,
        "stationarity": limit.stationarity,
        "gap": limit.certificate.duality_gap,
        "flow_gap": limit.flow_certificate.duality_gap,
        "log_norm": final.log_norm,
        "size": jnp.linalg.norm(final.model.combined_weights()),
        "weights": direction,
        "ratio": jnp.stack(ratio),
        "results": jnp.stack(results),
        "separable": jnp.stack(separable),
        "equal": assumption_2(data, head).slack,
    }
