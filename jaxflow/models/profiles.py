r"""The functions $p_L,q_L,h_L$ of Lemma 5.1 (Yun et al. 2021), through a variable that does not cancel at the edge.

$\dot p=p^{L-2}q$, $\dot q=p^{L-1}$, $p(0)=1$, $q(0)=0$ conserve $p^2-q^2=1$. With $q=\sinh s$ and $p=\cosh s$,

$$t=\int_0^s\cosh^{2-L}\sigma\,d\sigma,\qquad h_L=\cosh^{L-1}s\,\sinh s,\qquad
c_L=\frac{\sqrt\pi}2\frac{\Gamma(L/2-1)}{\Gamma(L/2-1/2)}$$

($c_2=\infty$, $c_3=\pi/2$, $c_4=1$). s runs over all reals while t stays in $(-c_L,c_L)$: near the edge s keeps the
digits that $c_L-t$ loses.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import betainc
from jaxtyping import Array, Float

from jaxflow._core import require

# Newton's method on functions that are almost linear: at rounding well before this (the tests hold L = 5 and 8).
NEWTON_STEPS = 25


def edge(depth: int) -> float:
    r"""$c_L$, where the maximal interval of existence ends."""
    require(depth >= 2, "depth", f"expected at least 2, got {depth}")
    known = {2: math.inf, 3: 0.5 * math.pi, 4: 1.0}
    if depth in known:
        return known[depth]
    return 0.5 * math.sqrt(math.pi) * math.gamma(depth / 2 - 1) / math.gamma(depth / 2 - 0.5)


def time_of(depth: int, s: Float[Array, "..."]) -> Float[Array, "..."]:
    """t as a function of s."""
    if depth == 2:
        return s
    if depth == 3:
        return 2.0 * jnp.arctan(jnp.tanh(0.5 * s))
    if depth == 4:
        return jnp.tanh(s)
    inside = edge(depth) * betainc(0.5, 0.5 * depth - 1.0, jnp.tanh(s) ** 2)
    return jnp.sign(s) * inside


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def angle_of(depth: int, t: Float[Array, "..."]) -> Float[Array, "..."]:
    """s as a function of t in the open interval; ±inf at its ends and NaN beyond."""
    if depth == 2:
        return t
    if depth == 3:
        return jnp.where(jnp.abs(t) < edge(3), jnp.arcsinh(jnp.tan(t)), _outside(depth, t))
    if depth == 4:
        return jnp.arctanh(t)
    return _by_newton(depth, t)


@angle_of.defjvp
def _angle_of_jvp(depth: int, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (t,), (t_dot,) = primals, tangents
    s = angle_of(depth, t)
    return s, jnp.cosh(s) ** (depth - 2) * t_dot


def height(depth: int, s: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$h_L=p^{L-1}q$ at s."""
    return jnp.cosh(s) ** (depth - 1) * jnp.sinh(s)


def height_slope(depth: int, s: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$dh_L/ds=p^{L-2}((L-1)q^2+p^2)$."""
    return jnp.cosh(s) ** (depth - 2) * ((depth - 1) * jnp.sinh(s) ** 2 + jnp.cosh(s) ** 2)


def angle_of_height(depth: int, value: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""s with $h_L=$ `value`: Newton's method on $\operatorname{arcsinh}h_L$, which is almost linear in s."""
    target = jnp.arcsinh(value)

    def step(_: Any, s: Array) -> Array:
        h = height(depth, s)
        slope = height_slope(depth, s) / jnp.hypot(1.0, h)
        return s - (jnp.arcsinh(h) - target) / slope

    # arcsinh h_L ≈ L s for large s, and at s = 0 its slope is 1.
    start = jnp.where(jnp.abs(value) < 1.0, value, target / depth)
    return jax.lax.fori_loop(0, NEWTON_STEPS, step, start)


def norm_like(depth: int, value: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""$H_L(\tau)=\int_0^\tau h_L^{-1}=t\,\tau-\tfrac12q_L(t)^2$ at $\tau=h_L(t)$ (Theorem 4), by Legendre."""
    s = angle_of_height(depth, value)
    return time_of(depth, s) * value - 0.5 * jnp.sinh(s) ** 2


def _outside(depth: int, t: Array) -> Array:
    return jnp.where(jnp.abs(t) == edge(depth), jnp.sign(t) * jnp.inf, jnp.nan)


def _by_newton(depth: int, t: Array) -> Array:
    c, half = edge(depth), 0.5 * depth - 1.0
    size = jnp.minimum(jnp.abs(t), c * (1.0 - jnp.finfo(t.dtype).epsneg))
    near = size < 0.5 * c
    rest = jnp.log(c - size)

    def step(_: Any, s: Array) -> Array:
        slope = jnp.cosh(s) ** (2 - depth)
        direct = (c * betainc(0.5, half, jnp.tanh(s) ** 2) - size) / slope
        left = c * betainc(half, 0.5, jnp.cosh(s) ** -2.0)
        edged = (rest - jnp.log(left)) * left / slope
        return jnp.maximum(s - jnp.where(near, direct, edged), 0.0)

    start = jnp.where(near, size, jnp.arctanh(jnp.minimum(size / c, 1.0 - 1e-9)))
    s = jax.lax.fori_loop(0, NEWTON_STEPS, step, start)
    return jnp.where(jnp.abs(t) < c, jnp.sign(t) * s, _outside(depth, t))
