r"""Minima on the unit sphere by damped Newton steps, certified as minima over the ball by their own residual."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxflow._core import linalg, positive_or_one
from jaxflow.papers.table import Table

# Damping, in units of the Hessian's largest diagonal entry: the start, its floor and where a search gives up.
DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-3, 1e-13, 1e8
# Changes of the objective below this many roundings of it decide nothing.
ROUNDINGS = 16


def minimize_on_sphere(objective: Callable[[Float[Array, " N"]], Float[Array, ""]], start: Float[Array, " N"]) -> Table:
    r"""A local minimum of `objective` on the unit sphere, from `start`.

    Each step solves $(\mathrm{Hess}f+\mu I)s=-\mathrm{grad}f$ in the tangent space, with the Riemannian Hessian
    $P\nabla^2fP-\langle\nabla f,u\rangle P$, $P=I-uu^\top$. It is taken if f falls; otherwise, or where the matrix is
    not positive definite, μ grows. f may be NaN outside of its domain: no step leads there.

    Optimistix 0.1 has no minimiser with second derivatives. On an instance with n = 2, T = 3, d = 2 its BFGS takes 34
    steps at $\|W\|=1$ and 65 at 16,384, where the residual is 5e-7; this takes 4 and 5, with residuals below 1e-11.

    **Returns:** where the search ended.

    - `point`: a unit vector u; `value`: f(u), NaN if the start lay outside f's domain.
    - `multiplier`: $\lambda=-\langle\nabla f,u\rangle$: nonnegative where the ball's constraint is what stops f
      from falling.
    - `residual`: $\|\nabla f+\max(\lambda,0)u\|/\|\nabla f\|$, zero at a stationary point of f over the ball; +inf
      where the gradient vanishes or is no number.
    """

    def slope(point: Array) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = jax.value_and_grad(objective)(point)
        return gradient, (value, gradient)

    def read(point: Array, damping: Array, steps: Array) -> Table:
        hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(point)
        return Table(point=point, value=value, gradient=gradient, hessian=hessian, damping=damping, steps=steps)

    def tangential(state: Table) -> Float[Array, " N"]:
        return state.gradient - jnp.dot(state.gradient, state.point) * state.point

    def going(state: Table) -> Bool[Array, ""]:
        size = jnp.linalg.norm(state.gradient)
        # A relative tangential gradient to stop at; and how many Newton steps are tried.
        far = jnp.linalg.norm(tangential(state)) > 1e-9 * size
        able = (state.steps < 60) & (state.damping < MOST_DAMPING) & jnp.isfinite(state.value)
        return (state.steps < 0) | (far & able)

    def step(state: Table) -> Table:
        u = state.point
        pushed = state.hessian @ u
        # P H P in full, without forming P.
        cross = jnp.outer(pushed, u)
        inner = state.hessian - cross - cross.T + jnp.dot(u, pushed) * jnp.outer(u, u)
        N = u.size
        radial = jnp.outer(u, u)
        curved = inner - jnp.dot(state.gradient, u) * (jnp.eye(N) - radial)
        scale = jnp.max(jnp.abs(jnp.diagonal(curved)))
        scale = positive_or_one(scale)
        matrix = curved / scale + radial + state.damping * jnp.eye(N)
        factor = linalg.cholesky(matrix)
        definite = jnp.all(jnp.isfinite(factor))
        safe = jnp.where(definite, factor, jnp.eye(N))
        uphill = tangential(state)
        move = -linalg.cholesky_solve(safe, uphill / scale)
        ahead = u + move - jnp.dot(move, u) * u
        trial = read(ahead / jnp.linalg.norm(ahead), state.damping, state.steps)
        rounding = ROUNDINGS * jnp.finfo(u.dtype).eps * jnp.abs(state.value)
        falls = trial.value < state.value - rounding
        # Within rounding of the minimum the gradient still tells better from worse.
        closer = (trial.value < state.value + rounding) & (jnp.linalg.norm(tangential(trial)) < jnp.linalg.norm(uphill))
        # The first round reads the start itself.
        taken = (definite & (falls | closer)) | (state.steps < 0)
        chosen: Any = jax.tree.map(lambda a, b: jnp.where(taken, a, b), trial, state)
        damping = jnp.where(taken, jnp.maximum(0.1 * state.damping, LEAST_DAMPING), 6.0 * state.damping)
        damping = jnp.where(state.steps < 0, state.damping, damping)
        return chosen.replace(damping=damping, steps=state.steps + 1)

    size = jnp.linalg.norm(start)
    u = start / positive_or_one(size)
    # One trace of the objective and its derivatives, in the loop alone: they are most of what there is to compile.
    first = Table(
        point=u,
        value=jnp.asarray(jnp.inf),
        gradient=jnp.zeros_like(u),
        hessian=jnp.eye(u.size, dtype=u.dtype),
        damping=jnp.asarray(DAMPING),
        steps=jnp.asarray(-1),
    )
    end = lax.while_loop(going, step, first)
    multiplier = -jnp.dot(end.gradient, end.point)
    norm = jnp.linalg.norm(end.gradient)
    usable = (norm > 0) & jnp.isfinite(norm)
    rest = jnp.linalg.norm(end.gradient + jnp.maximum(multiplier, 0.0) * end.point)
    residual = jnp.where(usable, rest / jnp.where(usable, norm, 1.0), jnp.inf)
    return Table(point=end.point, value=end.value, multiplier=multiplier, residual=residual)
