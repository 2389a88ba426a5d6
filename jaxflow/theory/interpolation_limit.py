r"""Theorem 4 of Yun, Krishnan, Mobahi (2021): the limit point of regression as the minimum of $Q_{L,\alpha,\bar\eta}$.

Newton's method on primal and dual together. With $e_j=\alpha|\bar\eta_j|$, $A=XS^\top$ and $g=A^\top\nu$,

$$\rho_j(\nu)=e_j^L\,h_L(e_j^{L-2}g_j),\qquad D(\nu)=y^\top\nu-\tfrac12\sum_je_j^2q_L(e_j^{L-2}g_j)^2,\qquad
\nabla D=y-A\rho .$$

(The conjugate of Q is half the squared last layer, for every L.) D lives in the box $|e_j^{L-2}g_j|<c_L$. Near an edge
of the box $\rho_j$ depends on digits of $g_j$ below rounding. The unknowns are therefore ν and $s_j$ with
$q_L=\sinh s_j$, which have no bounds.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import AbstractPrinted, checked, linalg, positive_or_one
from jaxflow.models.profiles import height, height_slope, time_of


class InterpolationLimit(AbstractPrinted):
    r"""The solution of (67) with its certificate.

    - `singular`: $\rho^\infty$ `(m,)`; `dual`: $\nu=-\int_0^\infty r\,dt$ `(n,)`.
    - `value`: $Q(\rho)$; `dual_value`: $D(\nu)\le Q$ at any feasible ρ; `gap`: their relative difference.
    - `residual`: $\max_i|A\rho-y|_i/\max_i|y_i|$; `stationarity`: $\|\nabla Q(\rho)-A^\top\nu\|_\infty$ relative to
      $\|\nabla Q\|_\infty$; `steps`: of Newton's method.
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
    r"""Solves (67) from the data alone, without the flow.

    **Arguments:** `rows`: $A=XS^\top$ of full row rank; `targets`: y; `start`: $\alpha\bar\eta$, no entry zero;
    `depth`: L.

    Source: Theorem 4, Corollaries 5–7. Corollary 6 needs $S=d^{(L-1)/2}\,\mathrm{Re}F$ where its text has $F$.
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
    angle, dual, steps = _newton(rows, aim, e, K, depth)
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


def _newton(rows: Array, aim: Array, e: Array, K: Array, depth: int) -> tuple[Array, Array, Array]:
    """Newton's method on $A\\rho(s)=y$ and $\\nabla Q(\\rho(s))=A^\\top\\nu$: s, ν, and steps."""

    def step(state: tuple) -> tuple:
        angle, dual, _, count = state
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
        size = jnp.max(jnp.abs(change))
        length = 1.0 / jnp.maximum(size, 1.0)
        return angle + length * change, dual + length * move, size, count + 1

    def going(state: tuple) -> Array:
        # Quadratic convergence: the square of this is rounding. 2 to 30 steps were seen (n = 5, d = 20, L = 2 to 5,
        # α from 10 to 1e-4).
        return (state[2] > 1e-9) & (state[3] < linalg.NEWTON_STEPS)

    start = (jnp.zeros_like(e), jnp.zeros_like(aim), jnp.asarray(jnp.inf, aim.dtype), jnp.zeros((), int))
    end = jax.lax.while_loop(going, step, start)
    # What is left are roundings of the last matrix; two more steps leave those of the equations.
    angle, dual, _, _ = jax.lax.fori_loop(0, 2, lambda _, state: step(state), end)
    return angle, dual, end[3]


def solve_scaled(matrix: Float[Array, "n n"], right: Float[Array, " n"]) -> Float[Array, " n"]:
    """A symmetric positive definite system, scaled to a unit diagonal."""
    root = jnp.sqrt(positive_or_one(jnp.diagonal(matrix)))
    factor = linalg.cholesky(matrix / root[:, None] / root[None, :])
    return linalg.cholesky_solve(factor, right / root) / root
