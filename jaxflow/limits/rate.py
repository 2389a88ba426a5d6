"""The observed rate of the flow against the one that the dual predicts."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import linalg, positive_or_one, tree_where
from jaxflow._core.linalg import ROUNDED
from jaxflow.limits.limit import Rate
from jaxflow.limits.self_certificate import as_primal
from jaxflow.margin import L1, AbstractProgram, AttentionProgram, Nuclear, Solution, certify
from jaxflow.trajectory import Trajectory


def fit_rate(
    program: AbstractProgram, solution: Solution, trajectory: Trajectory, gap: Callable[[Any], Float[Array, ""]]
) -> Rate:
    r"""The power of log t by which the gap of a model falls over the save points, beside the one that the dual
    predicts; the prediction alone where nothing was saved.

    Least squares of $\log(\text{gap})$ against $\log\log t$.
    """
    saved: Any = trajectory.saved
    predicted = 1.0 - off_support(program, solution)
    if saved is None:
        return Rate(predicted=predicted)
    # Rows past the end of the path are infinite; they must not reach a singular value decomposition.
    zeros = jax.tree.map(lambda x: jnp.zeros_like(x) if eqx.is_array(x) else x, saved.model)
    models = tree_where(saved.reached, saved.model, zeros)
    gaps = jax.vmap(gap)(models)
    usable = saved.reached & (gaps > 0) & jnp.isfinite(gaps) & (saved.log_time > 1.0)
    x = jnp.log(jnp.where(usable, saved.log_time, 2.0))
    y = jnp.log(jnp.where(usable, gaps, 1.0))
    count = jnp.maximum(jnp.sum(usable), 1)
    centre = jnp.where(usable, x - jnp.sum(jnp.where(usable, x, 0.0)) / count, 0.0)
    spread = jnp.sum(centre**2)
    enough = (jnp.sum(usable) >= 3) & (spread > 0)
    slope = jnp.sum(centre * y) / positive_or_one(spread)
    return Rate(
        exponent=jnp.where(enough, -slope, jnp.nan),
        predicted=predicted,
        log_times=jnp.where(saved.reached, saved.log_time, jnp.nan),
        gaps=jnp.where(saved.reached, gaps, jnp.nan),
    )


def weights_gap(program: AttentionProgram, solution: Solution) -> Callable[[Any], Float[Array, ""]]:
    """The gap of the weights of attention, as a function of the model."""

    def gap(model: Any) -> Float[Array, ""]:
        value = certify(program, as_primal(program, model.combined_weights()), solution.dual).primal_value
        return value / solution.certificate.primal_value - 1.0

    return gap


def off_support(program: AbstractProgram, solution: Solution) -> Float[Array, ""]:
    r"""κ, the largest dual value off the support: the components that decay like $(\log t)^{-(1-\kappa)}$."""
    combined = program.adjoint(solution.dual)
    primal = solution.primal
    finite = jnp.all(jnp.isfinite(primal)) & jnp.all(jnp.isfinite(combined))
    primal, combined = jnp.where(finite, primal, 0.0), jnp.where(finite, combined, 0.0)
    if isinstance(program.norm, L1):
        sizes, values = jnp.abs(primal), jnp.abs(combined)
    elif isinstance(program.norm, Nuclear):
        # Both come sorted.
        sizes, values = linalg.singular_values(primal), linalg.singular_values(combined)
    else:
        return jnp.zeros(())
    # Of a solution with a gap of ROUNDED.
    off = sizes <= ROUNDED**0.5 * jnp.max(sizes)
    largest = jnp.max(values)
    return jnp.max(jnp.where(off, values, 0.0)) / positive_or_one(largest)
