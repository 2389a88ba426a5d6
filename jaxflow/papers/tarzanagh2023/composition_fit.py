r"""The programs of the tokens that a descent selects, and how well they predict it (§6, figures 8 and 11)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow.data import TokenData
from jaxflow.margin import ProgramResult, attention_svm, best_combination, finite_component, solve

# Certified gap of what counts as solved: equalities are eliminated to 1e-11, and correlations are read to 1e-6.
GAP = 1e-9


@jax.jit
def directions(tokens: Array, queries: Array, labels: Array, selection: Array) -> dict[str, Array]:
    """(Gen-SVM) of the sets; (Att-SVM) where each has one token."""
    return jax.vmap(lambda x, z, y, chosen: _answer(attention_svm(TokenData(x, z, y), chosen)))(
        tokens, queries, labels, selection
    )


@jax.jit
def finite_components(
    tokens: Array, queries: Array, labels: Array, selection: Array, attention: Array
) -> dict[str, Array]:
    """Equation (7), with the last attention of the descent for s*."""
    return jax.vmap(lambda x, z, y, chosen, s: _answer(finite_component(TokenData(x, z, y), chosen, s)))(
        tokens, queries, labels, selection, attention
    )


def _answer(program: Any) -> dict[str, Array]:
    solution = solve(program, tolerance=GAP)
    return {"weights": solution.primal, "result": solution.result.value}


@jax.jit
def fits(
    weights: Array, direction: dict[str, Array], single: dict[str, Array], finite: dict[str, Array]
) -> dict[str, Array]:
    return jax.vmap(_fit)(weights, direction, single, finite)


def _fit(
    weights: Float[Array, "k d d"], direction: dict[str, Array], single: dict[str, Array], finite: dict[str, Array]
) -> dict[str, Array]:
    r"""$1-\mathrm{corr}$ of the descent's weights with each baseline, at every saved step; NaN without a solution.

    Combinations are fitted to the last weights and held fixed, as published. `svmeq`: the γ that the published
    code takes, $\min_\gamma\|W^{fin}+\gamma\bar W^{mm}-W\|_F$; `best` (last step only): the γ of
    greatest correlation.
    """
    optimal = ProgramResult.optimal.value
    one_solved = single["result"] == optimal
    solved = (direction["result"] == optimal) & (finite["result"] == optimal)
    size = jnp.linalg.norm(direction["weights"])
    # Without a masked token (Gen-SVM) asks nothing and its solution is zero: there is no direction to add.
    solved = solved & (size > 0)
    unit = direction["weights"] / jnp.where(size > 0, size, 1.0)
    last = weights[-1]
    gamma = jnp.sum((last - finite["weights"]) * unit)
    svmeq = finite["weights"] + gamma * unit
    anything = jnp.where(solved, unit, jnp.ones_like(unit))
    best = best_combination(last, finite["weights"], anything)

    def curve(target: Array, usable: Bool[Array, ""]) -> Array:
        return jnp.where(usable, jax.vmap(partial(decorrelation, target))(weights), jnp.nan)

    return {
        "svmeq": curve(svmeq, solved),
        "best": jnp.where(solved, decorrelation(last, best.weights), jnp.nan),
        "mm": curve(unit, solved),
        "one": curve(single["weights"], one_solved),
        "gamma": jnp.where(solved, gamma, jnp.nan),
        "best_gamma": jnp.where(solved, best.gamma, jnp.nan),
    }


def decorrelation(W: Float[Array, "d d"], V: Float[Array, "d d"]) -> Float[Array, ""]:
    r"""$1-\langle W,V\rangle/(\|W\|\|V\|)=\frac12\|W/\|W\|-V/\|V\|\|^2$, which resolves distances below 1e-16."""

    def unit(x: Array) -> Array:
        norm = jnp.linalg.norm(x)
        return x / jnp.where(norm > 0, norm, 1.0)

    return 0.5 * jnp.sum((unit(W) - unit(V)) ** 2)
