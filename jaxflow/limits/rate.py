"""The observed rate of the flow against the one that the dual predicts."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import linalg, positive_or_one
from jaxflow.limits.limit import Rate
from jaxflow.limits.self_certificate import as_primal
from jaxflow.margin import L1, AbstractProgram, AttentionProgram, Nuclear, Solution, certify
from jaxflow.trajectory import Trajectory

# Singular values and entries of a certified solution (gap 1e-10) below this share of the largest are zero.
ZERO = 1e-5


def fit_rate(program: AttentionProgram, solution: Solution, trajectory: Trajectory) -> Rate:
    r"""Fits $\log(\text{gap of }W(t))$ against $\log\log t$ over the save points."""
    saved = trajectory.saved
    if saved is None:
        raise ValueError("trajectory: a rate needs save points")
    optimum = solution.certificate.primal_value

    def gap(model) -> Float[Array, ""]:
        value = certify(program, as_primal(program, model.combined_weights()), solution.dual).primal_value
        return value / optimum - 1.0

    models = jax.tree.map(lambda x: _unreached_to_zero(x, saved.reached), saved.model)
    gaps = jax.vmap(gap)(models)
    return observed_rate(program, solution, saved, gaps)


def observed_rate(program: AbstractProgram, solution: Solution, saved: Any, gaps: Float[Array, " saves"]) -> Rate:
    r"""The power of log t by which the gaps at the save points `saved` fall, beside the one that the dual predicts."""
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
        predicted=1.0 - off_support(program, solution),
        log_times=jnp.where(saved.reached, saved.log_time, jnp.nan),
        gaps=jnp.where(saved.reached, gaps, jnp.nan),
    )


def no_rate(program: AttentionProgram, solution: Solution) -> Rate:
    """What is left of a `Rate` where nothing was saved along the flow: the prediction."""
    return Rate(jnp.asarray(jnp.nan), 1.0 - off_support(program, solution), jnp.zeros(0), jnp.zeros(0))


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
    off = sizes <= ZERO * jnp.max(sizes)
    largest = jnp.max(values)
    return jnp.max(jnp.where(off, values, 0.0)) / positive_or_one(largest)


def _unreached_to_zero(x: Array, reached: Array) -> Array:
    # Rows past the end of the path are infinite; they must not reach a singular value decomposition.
    if not hasattr(x, "ndim"):
        return x
    return jnp.where(reached.reshape(reached.shape + (1,) * (x.ndim - 1)), x, 0.0)
