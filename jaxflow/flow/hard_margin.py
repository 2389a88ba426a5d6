r"""The hard-margin flow: the limit of the gradient flow of a homogeneous model for exponents that floating point cannot
represent.

For margins $q_k(\theta)$ homogeneous of degree L and a loss with an exponential tail, multipliers $\propto
e^{-\rho^Lq_k}$ concentrate on the smallest margins as $\rho=\|\theta\|\to\infty$, and the flow tends to

$$\frac{d\theta}{d\sigma}\in\Big\{G=\sum_k\lambda_kh_k:\ \lambda_k\ge0\text{ on the smallest margins},\ h_k\in\partial
q_k(\theta),\ \langle G,\theta\rangle=\|\theta\|^2\Big\},\qquad\sigma=\log\rho .$$

With θ scaled to margin one, ψ, this is $d\psi/d\sigma=G(\psi)-\psi$. A step of length h by the second backward
differentiation formula, with $\omega$ the ratio of h to the step before, $k=(1+\omega)/(1+2\omega)$ and the base
$b=\psi_n+\frac{\omega^2}{1+2\omega}(\psi_n-\psi_{n-1})$, projects onto a level of the margin: with $\tau=kh/(1+kh)$,

$$\psi=\operatorname*{argmin}_{q_k(\psi)\ge1}\tfrac12\|\psi-(1-\tau)b\|^2,\qquad
\psi=(1-\tau)b+\tau\sum_k\lambda_kh_k(\psi),$$

so that $\|\psi-\sum\lambda_kh_k\|=\|b-\psi\|/(kh)$ is the KKT residual of $\min\frac12\|\psi\|^2$ s.t. $q_k\ge1$, the
problem that $h\to\infty$ leaves. The base moves no weight by more than half of itself: of a unit that fades out a long
step leaves little, and b would be beyond zero and on the other side of its kinks, where the flow may grow it again.

Newton's method solves a step for weights, multipliers and gates of kinks
(`jaxflow._core.kinks`) at once, on an active set: a margin belongs to the set while its multiplier is positive, and a
kink while its gate is between zero and one. Gates on a kink are Filippov's solution: the flow slides. A kink that
repels the flow on both sides is crossed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import AbstractPrinted, checked, tree_where
from jaxflow._core.kinks import gated, kink_count
from jaxflow.flow.drive import FIRST_STEP, StepMeter
from jaxflow.flow.hard_margin_step import HardMarginState, Margins, project

# The longest step in log ρ: h τ-close to the program itself.
LONGEST_STEP = 1e6
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
    - `error`: the sum over all steps of the estimated error of the direction. The end is as near where neighbouring
      paths do not part; close to a branch it may be another KKT point, which a smaller `tolerance` tells.
    - `slack`: the last observed c of a residual that falls like $\rho^{-c}$; NaN where none was seen.
    - `converged`: the residual asked for was reached; `steps`: those accepted.
    """

    state: HardMarginState
    first: HardMarginState
    residual: Float[Array, ""]
    log_growth: Float[Array, ""]
    error: Float[Array, ""]
    slack: Float[Array, ""]
    converged: Bool[Array, ""]
    steps: Int[Array, ""]


@checked(least={"max_steps": 1}, positive=["degree", "tolerance", "target"], infinite=["until"])
def hard_margin_flow(
    margins: Margins,
    weights: Float[Array, " p"],
    degree: Float[Array, ""],
    *,
    present: Bool[Array, " n"],
    target: float | Float[Array, ""],
    tolerance: float = 1e-4,
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
    - `tolerance`: the error of the direction that a step may have, estimated from the parabola through the three points
      before, which misses the new one by a known multiple of it.
    - `max_steps`: steps tried; `until`: log growth of ρ to stop at; `idle`: nothing to do.
    - `report` receives a line once a second, as that of `Drive` does.
    """
    line = "hard-margin flow: {} steps, log norm + {:.3g}, KKT residual {:.1e}"
    meter = None if report is None else StepMeter(report, line)
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
    begun = HardMarginPath(start, start, infinite, zero, zero, unseen, infinite <= target, count)
    first = jnp.where(ready, FIRST_STEP, 0.0).astype(weights.dtype)
    nowhere = _Before(scaled, scaled, infinite, infinite, infinite)

    def going(carry: tuple[HardMarginPath, _Before, Array, Array, Array]) -> Bool[Array, ""]:
        now, _, length, tried, _ = carry
        return (tried < max_steps) & (length > SHORTEST_STEP) & (now.log_growth < until) & ~now.converged

    def body(
        carry: tuple[HardMarginPath, _Before, Array, Array, Array],
    ) -> tuple[HardMarginPath, _Before, Array, Array, Array]:
        now, before, length, tried, begun_anew = carry
        # The last step ends at `until`, to roundings.
        length = jnp.minimum(length, (until - now.log_growth) * (1.0 + 1e-12))
        psi, ratio = now.state.weights, length / before.length
        k, extra = (1.0 + ratio) / (1.0 + 2.0 * ratio), ratio**2 / (1.0 + 2.0 * ratio)
        moved = psi - before.weights
        half = 0.5 * jnp.abs(psi)
        base = psi + jnp.clip(extra * moved, -half, half)
        state, solved = project(margins, present, now.state, base, k * length, now.residual)
        # Newton's parabola. Of a start, without points before, there is a constant or a line, and half of what it
        # misses is the error of Euler's formula.
        both = before.length + before.longer
        bend = (moved / before.length - (before.weights - before.oldest) / before.longer) / both
        parabola = psi + ratio * moved + jnp.where(now.steps < 2, 0.0, length * (length + before.length)) * bend
        share = jnp.where(now.steps < 2, 0.5, k * length / (length + both + k * length))
        units = (x / jnp.linalg.norm(x) for x in (state.weights, parabola))
        apart = share * jnp.linalg.norm(jnp.subtract(*units))
        apart = jnp.where(solved, apart, jnp.inf)
        accepted = apart <= tolerance
        residual = jnp.linalg.norm(state.weights - base) / (k * length * jnp.linalg.norm(state.weights))
        # Of a component with slack c the formula makes 1/(1 + ckh) of what the two steps before have left of it.
        left = now.residual + extra * (now.residual - before.residual)
        seen = (residual < 1e-3) & (residual > 1e-9) & (now.steps > 1)
        slack = jnp.where(seen, (left / residual - 1.0) / (k * length), now.slack)
        # The error of a step is of third order in its length, and the formula is stable where no step is more than
        # 1 + √2 times the one before.
        wanted = 0.9 * (tolerance / jnp.maximum(apart, 1e-12)) ** (1.0 / 3.0)
        most = jnp.where(accepted, 2.0, 0.8)
        factor = jnp.where(solved, jnp.clip(wanted, 0.2, most), 0.25)
        keep = HardMarginPath(
            state=state,
            first=tree_where(now.log_growth < SETTLING, state, now.first),
            residual=residual,
            log_growth=now.log_growth + length,
            error=now.error + apart,
            slack=slack,
            converged=residual <= target,
            steps=now.steps + 1,
        )
        new = tree_where(accepted, keep, now)
        passed = _Before(psi, before.weights, length, before.length, now.residual)
        before = tree_where(accepted, passed, before)
        if meter is not None:
            jax.debug.callback(meter, new.steps, new.log_growth, new.residual)
        length = jnp.minimum(length * factor, LONGEST_STEP)
        # An active set that no step can be solved from is given up: it is found again from the weights alone.
        stuck = (length <= SHORTEST_STEP) & (begun_anew < FRESH_STARTS)
        new = replace(new, state=tree_where(stuck, blank(new.state.weights), new.state))
        return new, before, jnp.where(stuck, first, length), tried + 1, begun_anew + stuck

    return lax.while_loop(going, body, (begun, nowhere, first, count, count))[0]


class _Before(NamedTuple):
    """The two points before a path's end, the lengths of the steps that followed them, infinite where there was none,
    and the residual at the first."""

    weights: Float[Array, " p"]
    oldest: Float[Array, " p"]
    length: Float[Array, ""]
    longer: Float[Array, ""]
    residual: Float[Array, ""]
