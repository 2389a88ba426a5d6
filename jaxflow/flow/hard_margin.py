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

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import AbstractPrinted, checked, linalg
from jaxflow._core.kinks import gated, kink_count

Margins = Callable[[Float[Array, " p"]], Float[Array, " n"]]

# Newton steps of one projection. Each changes the active set; on the right one three to six converge.
NEWTON_STEPS = 20
# A projection is solved where a Newton step is this small, and the active set is consistent to `CONSISTENT`: what
# rounding leaves of a margin of one after a system of a few hundred unknowns.
SOLVED, CONSISTENT = 1e-10, 1e-9
# Roundings of what multipliers and gates push, relative to the weights.
FLOOR = 1e-13
# The first step in log ρ, and the longest: h τ-close to the program itself.
FIRST_STEP, LONGEST_STEP = 0.01, 1e6
# Growth of log ρ in which margins that differ by 1/log t at the start have met.
SETTLING = 0.05
# What a margin of one or a switch of zero may be off by and still be one, and zero: without it a constraint that is
# just being left is taken up again for its rounding, and so on for ever.
ROUNDING = 1e-12
# How often the active set is looked for anew where no step can be solved.
FRESH_STARTS = 3
# Steps below this no longer move anything.
SHORTEST_STEP = 1e-7


class HardMarginState(AbstractPrinted):
    r"""A point of the hard-margin flow, scaled to margin one.

    `weights` ψ `(p,)`; `multipliers` λ `(n,)`, those of $\min\frac12\|\psi\|^2$; `gates` `(g,)`; `sliding` `(g,)`: the
    kinks that it is on.
    """

    weights: Float[Array, " p"]
    multipliers: Float[Array, " n"]
    gates: Float[Array, " g"]
    sliding: Bool[Array, " g"]


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
) -> HardMarginPath:
    r"""Follows the hard-margin flow from `weights` to a KKT point.

    **Arguments:**

    - `margins`: $q(\theta)$ `(n,)` of the flat weights, homogeneous of degree `degree`; those that are not `present`
      do not count. The smallest must be positive at the start.
    - `target`: the relative KKT residual to end at.
    - `tolerance`: how much the direction of one step may differ from that of two half steps.
    - `max_steps`: steps tried; `until`: log growth of ρ to stop at; `idle`: nothing to do.
    """
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
            found = _project(margins, present, origin, jnp.where(which == 0, length, half))
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
        length = jnp.minimum(length * factor, LONGEST_STEP)
        # An active set that no step can be solved from is given up: it is found again from the weights alone.
        stuck = (length <= SHORTEST_STEP) & (begun_anew < FRESH_STARTS)
        new = replace(new, state=_where(stuck, blank(new.state.weights), new.state))
        return new, jnp.where(stuck, first, length), tried + 1, begun_anew + stuck

    return lax.while_loop(going, body, (begun, first, count, count))[0]


def _where(which: Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(which, x, y), a, b)


def _unit(x: Array) -> Array:
    return x / jnp.linalg.norm(x)


def _project(
    margins: Margins, present: Array, origin: HardMarginState, length: Array
) -> tuple[HardMarginState, Array, Array]:
    """One step of implicit Euler, whether it was solved, and Newton steps."""
    share = length / (1.0 + length)
    pulled = (1.0 - share) * origin.weights

    def going(carry: tuple[HardMarginState, Array, Array]) -> Array:
        _, status, count = carry
        return (status == 0) & (count < NEWTON_STEPS)

    def body(carry: tuple[HardMarginState, Array, Array]) -> tuple[HardMarginState, Array, Array]:
        state, _, count = carry
        new, move, push = _newton(margins, present, state, pulled, share)
        size = jnp.linalg.norm(new.weights)
        lost = ~(move <= 10.0 * size)
        # What multipliers and gates push is a share of the weights, and the residual is measured in it.
        settled = (move <= SOLVED * size) & (push <= (SOLVED * share + FLOOR) * size)
        done = settled & _consistent(margins, present, new)
        return new, jnp.where(lost, 2, jnp.where(done, 1, 0)), count + 1

    # Multipliers of the step are those of the program times the share.
    begun = eqx.tree_at(lambda s: s.multipliers, origin, share * origin.multipliers)
    state, status, count = lax.while_loop(going, body, (begun, jnp.zeros((), int), jnp.zeros((), int)))
    state = eqx.tree_at(lambda s: s.multipliers, state, state.multipliers / share)
    return state, status == 1, count


def _consistent(margins: Margins, present: Array, state: HardMarginState) -> Array:
    value, z, _ = gated(margins, state.weights, state.gates)
    rounding = CONSISTENT * jnp.max(jnp.abs(z), initial=0.0, where=jnp.isfinite(z))
    at = jnp.where(state.gates > 0.5, z >= -rounding, z <= rounding)
    fits = jnp.all(jnp.where(state.sliding, jnp.abs(z) <= rounding, at))
    enough = jnp.all(jnp.where(present, value, 1.0) >= 1.0 - CONSISTENT)
    return fits & enough & jnp.all(state.multipliers >= 0.0)


def _newton(
    margins: Margins, present: Array, state: HardMarginState, pulled: Array, share: Array
) -> tuple[HardMarginState, Array, Array]:
    """A Newton step for weights, multipliers and gates on the active set; how far it moves the weights, and how much
    multipliers and gates push differently."""
    psi, lam, gates = state.weights, state.multipliers, state.gates
    p, n, g = psi.size, lam.size, gates.size

    def fields(psi: Array) -> Any:
        def potential(psi: Array, offsets: Array) -> Any:
            found = gated(margins, psi, gates, offsets)
            q = jnp.where(present, found.value, 0.0)
            return jnp.dot(lam, q), (found.value, found.switches)

        (pushes, worths), (q, z) = jax.grad(potential, argnums=(0, 1), has_aux=True)(psi, jnp.zeros_like(gates))
        return (pushes, q, z), (pushes, q, z, worths)

    (hessian, rows, kinks), (pushes, q, z, worths) = jax.jacfwd(fields, has_aux=True)(psi)
    active = present & (lam - share * (q - 1.0) > share * ROUNDING)
    # Where the gate is on the wrong side the flow slides if the kink attracts, and crosses if it does not.
    tiny = ROUNDING * jnp.max(jnp.abs(z), initial=0.0, where=jnp.isfinite(z))
    wrong = ~state.sliding & jnp.where(gates > 0.5, z < -tiny, z > tiny)
    sliding = state.sliding | (wrong & (worths < 0))
    gates = jnp.where(wrong & (worths >= 0), 1.0 - gates, gates)
    # Rows of more kinks than weights are dependent.
    m = min(g, p)
    chosen = jnp.argsort(~sliding, stable=True)[:m]
    on = sliding[chosen]
    normals = jnp.where(on[:, None], kinks[chosen], 0.0)
    jumps = jnp.where(wrong & (worths >= 0), worths * (2.0 * gates - 1.0), 0.0)
    rest = psi - pulled - pushes - kinks.T @ jumps
    # Unknowns of a kink are gate times worth, which keeps the matrix symmetric; the floor is that of rounding, for
    # rows that depend on each other.
    floor = 1e-14 * jnp.maximum(1.0, jnp.max(jnp.abs(rows)))
    matrix = jnp.block(
        [
            [jnp.eye(p) - hessian, -jnp.where(active[:, None], rows, 0.0).T, -normals.T],
            [jnp.where(active[:, None], rows, 0.0), jnp.diag(jnp.where(active, floor, 1.0)), jnp.zeros((n, m))],
            [normals, jnp.zeros((m, n)), jnp.diag(jnp.where(on, floor, 1.0))],
        ]
    )
    right = jnp.concatenate([-rest, jnp.where(active, 1.0 - q, -lam), jnp.where(on, -z[chosen], 0.0)])
    change = linalg.solve(matrix, right)
    worth = worths[chosen]
    turn = jnp.where(on & (worth != 0), change[p + n :] / jnp.where(worth != 0, worth, 1.0), 0.0)
    moved = gates.at[chosen].add(turn)
    new = HardMarginState(
        psi + change[:p],
        lam + change[p : p + n],
        jnp.clip(moved, 0.0, 1.0),
        sliding & (moved >= 0) & (moved <= 1),
    )
    pushed = jnp.where(present[:, None], rows, 0.0).T @ change[p : p + n] + normals.T @ change[p + n :]
    return new, jnp.linalg.norm(change[:p]), jnp.linalg.norm(pushed)
