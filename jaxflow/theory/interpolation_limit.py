r"""Theorem 4 of Yun, Krishnan, Mobahi (2021): the limit point of regression as the minimum of $Q_{L,\alpha,\bar\eta}$.

Newton's method on the concave dual, then on primal and dual together. With $e_j=\alpha|\bar\eta_j|$, $A=XS^\top$ and
$g=A^\top\nu$,

$$\rho_j(\nu)=e_j^L\,h_L(e_j^{L-2}g_j),\qquad D(\nu)=y^\top\nu-\tfrac12\sum_je_j^2q_L(e_j^{L-2}g_j)^2,\qquad
\nabla D=y-A\rho .$$

(The conjugate of Q is half the squared last layer, for every L.) D lives in the box $|e_j^{L-2}g_j|<c_L$. Near an edge
$\rho_j$ depends on digits of $g_j$ that do not exist, so the last steps keep $s_j$, $q_L=\sinh s_j$, beside ν.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import checked, linalg, positive_or_one
from jaxflow.models.profiles import angle_of, edge, height, height_slope, time_of

# Damped Newton takes 2 to 20 steps (n = 5, d = 20, L = 2 to 5, α from 10 to 0.01). For L > 3 and α = 1e-4 the digits of
# ν run out before the residual is small, and what is left is done by the polish, to 3e-15.
NEWTON_STEPS = 200
# Newton on primal and dual together: quadratic from where the dual stops.
POLISH_STEPS = 12
# A step ends at this share of the way to the box.
INSIDE = 0.9


class InterpolationLimit(eqx.Module):
    r"""The solution of (67) with what certifies it.

    - `singular`: $\rho^\infty$ `(m,)`; `dual`: $\nu=-\int_0^\infty r\,dt$ `(n,)`.
    - `value`: $Q(\rho)$; `dual_value`: $D(\nu)\le Q$ at any feasible ρ; `gap`: their relative difference.
    - `residual`: $\max_i|A\rho-y|_i/\max_i|y_i|$; `stationarity`: $\|\nabla Q(\rho)-A^\top\nu\|_\infty$ relative to
      $\|\nabla Q\|_\infty$; `steps`: damped Newton steps on the dual.

    **Example:**

    ```python
    found = jf.theory.interpolation_limit(linear.inputs, linear.targets, 0.1 * jnp.ones(3), depth=2)
    found.value, found.residual
    ```
    """

    singular: Float[Array, " m"]
    dual: Float[Array, " n"]
    value: Float[Array, ""]
    dual_value: Float[Array, ""]
    residual: Float[Array, ""]
    stationarity: Float[Array, ""]
    steps: Int[Array, ""]

    @property
    def gap(self) -> Float[Array, ""]:
        """Q − D relative to Q."""
        return (self.value - self.dual_value) / positive_or_one(self.value)

    @property
    def converged(self) -> Bool[Array, "*batch"]:
        """Whether ρ interpolates and is stationary to 1e-10, five orders above rounding."""
        return (self.residual <= 1e-10) & (self.stationarity <= 1e-10)


@checked(least={"depth": 2})
def interpolation_limit(
    rows: Float[Array, "n m"], targets: Float[Array, " n"], start: Float[Array, " m"], depth: int
) -> InterpolationLimit:
    r"""Solves (67) from the data alone, no flow involved.

    **Arguments:** `rows`: $A=XS^\top$ of full row rank; `targets`: y; `start`: $\alpha\bar\eta$, no entry zero;
    `depth`: L.

    Source: Theorem 4, Corollaries 5–7. Corollary 6 needs $S=d^{(L-1)/2}\,\mathrm{Re}F$ where its text has $F$.

    **Example:**

    ```python
    jf.theory.interpolation_limit(linear.inputs, linear.targets, 0.1 * jnp.ones(3), depth=2).singular
    ```
    """
    size = jnp.abs(start)
    # Units in which the largest start is one and the largest target too: ρ scales like e^L, g like e^(2−L).
    unit = jnp.max(size)
    e = size / unit
    scale = jnp.max(jnp.abs(targets))
    scale = positive_or_one(scale)
    aim = targets / scale
    # Then ρ/scale = K e^L h(e^(L−2) g) with K = unit^L / scale.
    K = unit**depth / scale
    dual, steps = _dual_newton(rows, aim, e, K, depth)
    angle = angle_of(depth, e ** (depth - 2) * (rows.T @ dual))
    angle, dual = _polish(rows, aim, e, K, depth, angle, dual)
    rho = K * e**depth * height(depth, angle)
    push = time_of(depth, angle) * e ** (2 - depth)
    back = unit ** (2 - depth)
    value = jnp.sum(push * rho) * back * scale - 0.5 * unit**2 * jnp.sum((e * jnp.sinh(angle)) ** 2)
    inside = rows.T @ dual
    dual_value = (aim @ dual) * back * scale - 0.5 * unit**2 * jnp.sum((e * jnp.sinh(angle)) ** 2)
    return InterpolationLimit(
        singular=rho * scale,
        dual=dual * back,
        value=value,
        dual_value=dual_value,
        residual=jnp.max(jnp.abs(rows @ rho - aim)),
        stationarity=jnp.max(jnp.abs(push - inside)) / jnp.maximum(jnp.max(jnp.abs(push)), jnp.finfo(push.dtype).tiny),
        steps=steps,
    )


def _dual_newton(rows: Array, aim: Array, e: Array, K: Array, depth: int) -> tuple[Array, Array]:
    c = edge(depth)
    stretch = e ** (depth - 2)

    def value(dual: Array) -> Array:
        t = stretch * (rows.T @ dual)
        angle = angle_of(depth, jnp.clip(t, -c, c) if c < float("inf") else t)
        d = aim @ dual - 0.5 * K * jnp.sum((e * jnp.sinh(angle)) ** 2)
        return jnp.where(jnp.all(jnp.abs(t) < c) & jnp.isfinite(d), d, -jnp.inf)

    def step(state: tuple) -> tuple:
        dual, _, count = state
        angle = angle_of(depth, stretch * (rows.T @ dual))
        rho = K * e**depth * height(depth, angle)
        gradient = aim - rows @ rho
        slope = K * e**depth * height_slope(depth, angle) * jnp.cosh(angle) ** (depth - 2) * stretch
        direction = solve_scaled((rows * slope[None, :]) @ rows.T, gradient)
        # The longest step that stays inside the box.
        t, dt = stretch * (rows.T @ dual), stretch * (rows.T @ direction)
        room = jnp.where(dt > 0, c - t, jnp.where(dt < 0, -c - t, jnp.inf)) / jnp.where(dt == 0, 1.0, dt)
        longest = jnp.minimum(1.0, INSIDE * jnp.min(room))
        ascent = gradient @ direction
        here = value(dual)

        def too_long(search: tuple) -> Array:
            length, tries = search
            # What is gained must be a quarter of what the tangent promises, or lost in rounding.
            gained = value(dual + length * direction) - here
            return (tries < 60) & ~(gained >= 0.25 * length * ascent - 1e-15 * jnp.abs(here))

        length, _ = jax.lax.while_loop(too_long, lambda s: (0.5 * s[0], s[1] + 1), (longest, jnp.zeros((), int)))
        left = jnp.max(jnp.abs(gradient))
        return dual + length * direction, left, count + 1

    def going(state: tuple) -> Array:
        _, left, count = state
        return (left > 1e-9) & (count < NEWTON_STEPS)

    start = (jnp.zeros_like(aim), jnp.asarray(jnp.inf, aim.dtype), jnp.zeros((), int))
    dual, _, count = jax.lax.while_loop(going, step, start)
    return dual, count


def _polish(rows: Array, aim: Array, e: Array, K: Array, depth: int, angle: Array, dual: Array) -> tuple[Array, Array]:
    """Newton's method on $A\\rho(s)=y$ and $\\nabla Q(\\rho(s))=A^\\top\\nu$ in s and ν."""

    def step(_: Any, state: tuple) -> tuple:
        angle, dual = state
        rho = K * e**depth * height(depth, angle)
        rise = K * e**depth * height_slope(depth, angle)
        push = time_of(depth, angle) * e ** (2 - depth)
        # dρ/dg = (dρ/ds) / (dg/ds), dg/ds = e^(2−L) cosh^(2−L) s.
        slope = rise * jnp.cosh(angle) ** (depth - 2) * e ** (depth - 2)
        miss = rows.T @ dual - push
        right = aim - rows @ rho - rows @ (slope * miss)
        move = solve_scaled((rows * slope[None, :]) @ rows.T, right)
        change = slope * (miss + rows.T @ move) / rise
        # One unit of s is a factor e^L in ρ: longer steps are no Newton steps.
        length = jnp.minimum(1.0, 1.0 / jnp.maximum(jnp.max(jnp.abs(change)), 1e-300))
        return angle + length * change, dual + length * move

    return jax.lax.fori_loop(0, POLISH_STEPS, step, (angle, dual))


def solve_scaled(matrix: Float[Array, "n n"], right: Float[Array, " n"]) -> Float[Array, " n"]:
    """A symmetric positive definite system, scaled to a unit diagonal."""
    root = jnp.sqrt(jnp.diagonal(matrix))
    root = positive_or_one(root)
    factor = linalg.cholesky(matrix / root[:, None] / root[None, :])
    return linalg.cholesky_solve(factor, right / root) / root
