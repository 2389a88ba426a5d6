r"""The hard-margin flow: the limit of the gradient flow of a homogeneous model for exponents that floating point cannot
represent.

For margins $q_k(\theta)$ homogeneous of degree L and a loss with an exponential tail, multipliers $\propto
e^{-\rho^Lq_k}$ concentrate on the smallest margins as $\rho=\|\theta\|\to\infty$, and the flow tends to

$$\frac{d\theta}{d\sigma}\in\Big\{G=\sum_k\lambda_kh_k:\ \lambda_k\ge0\text{ on the smallest margins},\ h_k\in\partial
q_k(\theta),\ \langle G,\theta\rangle=\|\theta\|^2\Big\},\qquad\sigma=\log\rho .$$

A step of implicit Euler of length h projects onto a level of the margin: with θ scaled to margin one, $\tau=h/(1+h)$,

$$\psi=\operatorname*{argmin}_{q_k(\psi)\ge1}\tfrac12\|\psi-(1-\tau)\theta\|^2,\qquad
\psi=(1-\tau)\theta+\tau\sum_k\lambda_kh_k(\psi),$$

so that $\|\psi-\sum\lambda_kh_k\|=\|\theta-\psi\|/h$ is the KKT residual of $\min\frac12\|\psi\|^2$ s.t. $q_k\ge1$, the
problem that $h\to\infty$ leaves. Newton's method solves a step for weights, multipliers and gates of kinks
(`jaxflow._core.kinks`) at once, on an active set: a margin belongs to the set while its multiplier is positive, and a
kink while its gate is between zero and one. Gates on a kink are Filippov's solution: the flow slides. A kink that
repels the flow on both sides is crossed.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import AbstractPrinted, checked, require
from jaxflow._core.kinks import gated, kink_count
from jaxflow.flow.drive import EVERY
from jaxflow.flow.hard_margin_step import HardMarginState, Margins, project

# The first step in log ρ, and the longest: h τ-close to the program itself.
FIRST_STEP, LONGEST_STEP = 0.01, 1e6
# Growth of log ρ in which margins that differ by 1/log t at the start have met.
SETTLING = 0.05
# How often the active set is looked for anew where no step can be solved.
FRESH_STARTS = 3
# Steps below this no longer move anything.
SHORTEST_STEP = 1e-7


class HardMarginPath(AbstractPrinted):
    r"""The end of the hard-margin flow, and the errors on the way.

    - `state`: its end; `residual`: $\|\psi-\sum\lambda_kh_k\|/\|\psi\|$ there. `first`: a point soon after the start,
      where the smallest margins are equal, with its multipliers and gates.
    - `log_growth`: the growth of log ρ.
    - `error`: the sum over all steps of the difference between the direction of the step and that of two half steps.
      This estimate of the error of the end does not assume that the path is attracting.
    - `slack`: the last observed c of a residual that falls like $\rho^{-c}$; NaN where none was seen.
    - `converged`: the residual asked for was reached; `steps` (accepted), `newton_steps`.
    """

    state: HardMarginState
    first: HardMarginState
    residual: Float[Array, ""]
    log_growth: Float[Array, ""]
    error: Float[Array, ""]
    slack: Float[Array, ""]
    converged: Bool[Array, ""]
    steps: Int[Array, ""]
    newton_steps: Int[Array, ""]


@checked(least={"max_steps": 1}, positive=["degree", "tolerance", "target"], infinite=["until"])
def hard_margin_flow(
    margins: Margins,
    weights: Float[Array, " p"],
    degree: Float[Array, ""],
    *,
    present: Bool[Array, " n"],
    target: float,
    tolerance: float = 1e-3,
    max_steps: int = 2048,
    until: float | Float[Array, ""] = jnp.inf,
    idle: Bool[Array, ""] | bool = False,
    report: Callable[[str], None] | None = None,
) -> HardMarginPath:
    r"""Follows the hard-margin flow from `weights` to a KKT point.

    **Arguments:**

    - `margins`: $q(\theta)$ `(n,)` of the flat weights, homogeneous of degree `degree`; those that are not `present`
      do not count. The smallest must be positive at the start.
    - `target`: the relative KKT residual to end at.
    - `tolerance`: how much the direction of one step may differ from that of two half steps.
    - `max_steps`: steps tried; `until`: log growth of ρ to stop at; `idle`: nothing to do.
    - `report` receives a line once a second, as that of `Drive` does.
    """
    require(report is None or callable(report), "report", "expected a function", got=report)
    meter = None if report is None else _Meter(report)
    smallest = jnp.min(jnp.where(present, margins(weights), jnp.inf))
    ready = (smallest > 0) & jnp.isfinite(smallest) & ~jnp.asarray(idle)
    scaled = weights / jnp.where(ready, smallest, 1.0) ** (1.0 / degree)
    kinks = kink_count(margins, weights)

    def blank(weights: Array) -> HardMarginState:
        """No active set yet; gates as the weights have them."""
        multipliers = jnp.zeros_like(present, weights.dtype)
        return HardMarginState(weights, multipliers, gated(margins, weights).gates, jnp.zeros(kinks, bool))

    start = blank(scaled)
    zero, count = jnp.zeros((), weights.dtype), jnp.zeros((), int)
    infinite, unseen = jnp.full_like(zero, jnp.inf), jnp.full_like(zero, jnp.nan)
    begun = HardMarginPath(start, start, infinite, zero, zero, unseen, infinite <= target, count, count)
    first = jnp.where(ready, FIRST_STEP, 0.0).astype(weights.dtype)

    def going(carry: tuple[HardMarginPath, Array, Array, Array]) -> Bool[Array, ""]:
        now, length, tried, _ = carry
        return (tried < max_steps) & (length > SHORTEST_STEP) & (now.log_growth < until) & ~now.converged

    def body(carry: tuple[HardMarginPath, Array, Array, Array]) -> tuple[HardMarginPath, Array, Array, Array]:
        now, length, tried, begun_anew = carry
        # The last step ends at `until`, to roundings.
        length = jnp.minimum(length, jnp.expm1(until - now.log_growth) * (1.0 + 1e-12))
        half = jnp.sqrt(1.0 + length) - 1.0

        # One step, a half, and another half from there: one trace of Newton's method for the three.
        def one(carry: HardMarginState, which: Array) -> tuple[HardMarginState, Any]:
            origin = _where(which == 2, carry, now.state)
            found = project(margins, present, origin, jnp.where(which == 0, length, half), now.residual)
            return found[0], found

        _, (three, solved, newton_steps) = lax.scan(one, now.state, jnp.arange(3))
        solved = jnp.all(solved)
        fine: HardMarginState = jax.tree.map(lambda x: x[2], three)
        apart = jnp.linalg.norm(_unit(three.weights[0]) - _unit(fine.weights))
        apart = jnp.where(solved, apart, jnp.inf)
        accepted = apart <= tolerance
        moved = jnp.linalg.norm(three.weights[1] - fine.weights)
        residual = moved / (half * jnp.linalg.norm(fine.weights))
        # Steps of implicit Euler take a component with slack c down by 1 + c h.
        halved = jnp.linalg.norm(now.state.weights - three.weights[1]) / moved
        slack = jnp.where((residual < 1e-3) & (residual > 1e-9), (halved - 1.0) / half, now.slack)
        # The error of a step is of second order in its length.
        wanted = 0.8 * jnp.sqrt(tolerance / jnp.maximum(apart, 1e-12))
        factor = jnp.where(accepted, jnp.clip(wanted, 0.2, 4.0), jnp.where(solved, jnp.clip(wanted, 0.2, 0.8), 0.25))
        keep = HardMarginPath(
            state=fine,
            first=_where(now.log_growth < SETTLING, fine, now.first),
            residual=residual,
            log_growth=now.log_growth + jnp.log1p(length),
            error=now.error + apart,
            slack=slack,
            converged=residual <= target,
            steps=now.steps + 1,
            newton_steps=now.newton_steps + jnp.sum(newton_steps),
        )
        new = _where(accepted, keep, replace(now, newton_steps=keep.newton_steps))
        if meter is not None:
            jax.debug.callback(meter, new.steps, new.log_growth, new.residual)
        length = jnp.minimum(length * factor, LONGEST_STEP)
        # An active set that no step can be solved from is given up: it is found again from the weights alone.
        stuck = (length <= SHORTEST_STEP) & (begun_anew < FRESH_STARTS)
        new = replace(new, state=_where(stuck, blank(new.state.weights), new.state))
        return new, jnp.where(stuck, first, length), tried + 1, begun_anew + stuck

    return lax.while_loop(going, body, (begun, first, count, count))[0]


class _Meter:
    """Called from inside the loop with what it has reached; reports at most once in `EVERY` seconds."""

    def __init__(self, say: Callable[[str], None]):
        self._say, self._last = say, -EVERY

    def __call__(self, steps: Any, growth: Any, residual: Any) -> None:
        if time.monotonic() - self._last >= EVERY:
            grown = f"log norm + {float(growth):.3g}, KKT residual {float(residual):.1e}"
            self._say(f"hard-margin flow: {int(steps)} steps, {grown}")
            self._last = time.monotonic()


def _where(which: Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(which, x, y), a, b)


def _unit(x: Array) -> Array:
    return x / jnp.linalg.norm(x)
