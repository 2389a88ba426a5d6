r"""Mirror flow of a model that is affine in its parameters, in a frame in which it comes to rest.

With $\psi(\theta)=\frac1p\|\theta\|_p^p$ of entries or of singular values, and for entries
$\nabla\psi^*(z)=\mathrm{sign}(z)|z|^{q-1}$, $1/p+1/q=1$, the flow is $\dot z=-\nabla L(\nabla\psi^*(z))$. Let w be the
direction of the largest margin in the norm of ψ, with margins of one or more, $\zeta=\nabla\psi(w)$, and κ
the rate of the tail. With $s=\log(1+t/u)$, $\sigma=(1+s)/\kappa$ and $m=\sigma^{\max(p-2,0)}$

$$z=z_0+\sigma^{p-1}\zeta+mr:\qquad\frac{dr}{ds}=\frac1m\sum_ke^{E_k}a_k-\frac{p-1}{\kappa m}\sigma^{p-2}\zeta
-\frac{m'}mr,\qquad\theta=\sigma\,\nabla\psi^*\Big(\zeta+\frac{z_0+mr}{\sigma^{p-1}}\Big),$$

with the exponents $E_k$ of `jaxflow.limits.affine_flow`. Multipliers of the support are $s^{p-2}$ times constants, so
that their margins are $s-(p-2)\log s+O(1)$ over κ: r is of order log s along ζ, and bounded otherwise. The start, and
what data without support have added to z before they were left behind, turn θ by $s^{1-p}$, and constants of margins
turn it by 1/s. Velocities are nearer: for p ≥ 2 that of θ, to $s^{-2}$ and $s^{1-p}$, and for p < 2 that of z, to 1/s
and $s^{2-2p}$. If the direction of dz/ds tends to ζ then so does that of z, and that of $\theta=\nabla\psi^*(z)$ tends
to w.

Margins are $\sigma a_k^\top w$ and products with what θ is more than σw, which has no roundings of σw. For p < 2 it is
of order $s^{2-p}$, and its roundings end the path where p is near one. Of singular values what θ is more than σw is a
plain difference, with the roundings of σw, and margins lose s of them. A velocity counts where its multipliers make it.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from jaxflow._core import linalg, positive_or_one
from jaxflow._core.linalg import ROUNDED
from jaxflow.limits.affine_flow import ATOL, AbstractFrame, AffineFlow, Margins, Scalar, Vector
from jaxflow.losses import tail_rate
from jaxflow.margin.potential import AbstractPotential


class MirrorFrame(AbstractFrame):
    """`growth` w, `dual` ζ, `pace` of the margins, `start` θ_0, `potential` ψ, and as in `Frame`; in all parameters."""

    ahead: ClassVar[float] = 1.0
    flow: AffineFlow
    growth: Vector
    dual: Vector
    pace: Margins
    start: Vector
    log_unit: Scalar
    growing: Bool[Array, " n"]
    potential: AbstractPotential

    @property
    def exponent(self) -> float:
        """p."""
        return self.potential.exponent

    def _logs(self, s: Scalar) -> tuple[Scalar, Scalar]:
        """log m, and the log of σ^(p-2)/m: one of the two is zero."""
        log_length = jnp.log(self.length(s))
        return max(self.exponent - 2.0, 0.0) * log_length, min(self.exponent - 2.0, 0.0) * log_length

    def _first(self, s: Scalar) -> Vector:
        """z_0 over m."""
        return self.potential.map(self.start) * jnp.exp(-self._logs(s)[0])

    def _share(self, s: Scalar, r: Vector) -> Vector:
        """What z is more than σ^(p-1) ζ, over σ^(p-1)."""
        return (r + self._first(s)) * jnp.exp(-self._logs(s)[1]) / self.length(s)

    def _away(self, s: Scalar, r: Vector) -> Vector:
        """What θ is more than σw."""
        return self.length(s) * self.potential.conjugate.beyond(self.dual, self.growth, self._share(s, r))

    def _back(self, s: Scalar, away: Vector) -> Vector:
        """r, from what θ is more than σw."""
        share = self.potential.beyond(self.growth, self.dual, away / self.length(s))
        return share * jnp.exp(self._logs(s)[1]) * self.length(s) - self._first(s)

    def beside(self, s: Scalar, r: Vector) -> Vector:
        """What θ - θ_0 is more than σw."""
        return self._away(s, r) - self.start

    def exponents(self, s: Scalar, r: Vector) -> Margins:
        return self._exponents(s, self._away(s, r))

    def _exponents(self, s: Scalar, away: Vector) -> Margins:
        return self.tails(s, self.flow.offsets + self.flow.products(away - self.start))

    def field(self, s: Scalar, r: Vector) -> Vector:
        return self._rates(s, self._away(s, r)) - self._steady(s, r)

    def _rates(self, s: Scalar, away: Vector) -> Vector:
        """dz/ds over m, from the multipliers."""
        return self.flow.pushed(jnp.exp(self._exponents(s, away) - self._logs(s)[0]))

    def _steady(self, s: Scalar, r: Vector) -> Vector:
        """dz/ds over m, less dr/ds."""
        steady = (self.exponent - 1.0) / tail_rate(self.flow.loss) * jnp.exp(self._logs(s)[1]) * self.dual
        return steady + max(self.exponent - 2.0, 0.0) / (1.0 + s) * r

    def solved(
        self, before: Scalar, s: Scalar, weight: Scalar, start: Vector, begun: Vector, tolerance: float
    ) -> tuple[Vector, Bool[Array, ""]]:
        """By Newton's method for θ or z, whichever of the two is the smoother function of the other, and for the
        multipliers, which change little in a step where the margins of a θ that is near may be far off.
        """
        by_theta = self.exponent > 2.0

        def both(u: Array) -> tuple[Array, Array]:
            return (u, self._back(s, u)) if by_theta else (self._away(s, u), u)

        def body(state: tuple) -> tuple:
            u, logs, last, count, _ = state
            pushes = jnp.exp(logs)

            def left(u: Array) -> Array:
                r = both(u)[1]
                return weight * (self.flow.pushed(pushes) - self._steady(s, r)) - (r - start)

            def wanted(u: Array) -> Array:
                return self._exponents(s, both(u)[0]) - self._logs(s)[0]

            open_, turns = wanted(u) - logs, jax.jacfwd(wanted)(u)
            matrix = -jax.jacfwd(left)(u) - weight * self.flow.rows.T @ (pushes[:, None] * turns)
            right = left(u) + weight * self.flow.pushed(pushes * open_)
            way = linalg.lu_solve(linalg.lu_factor(matrix), right)
            # Along a step margins change as their slopes say, to half of it, or the step is halved. Those whose
            # multipliers are below the tolerance do not count.
            straight, counted = jnp.abs(turns @ way), pushes > tolerance * jnp.max(pushes)

            def bent(share: Array) -> Array:
                off = jnp.abs(wanted(u + share * way) - logs - open_ - share * (turns @ way))
                allowed = 1.0 + 0.5 * share * jnp.max(straight, where=counted, initial=0.0)
                return ~(jnp.max(off, where=counted, initial=0.0) <= allowed)

            # A share of a step that is a rounding is none.
            share = lax.while_loop(
                lambda share: bent(share) & (share > jnp.finfo(share.dtype).eps),
                lambda share: 0.5 * share,
                jnp.ones_like(last),
            )
            way, change = share * way, share * (open_ + turns @ way)
            # The equations are linear in the multipliers; those that would be negative fall by their exponent.
            logs = logs + jnp.where(change > -0.5, jnp.log1p(jnp.maximum(change, -0.5)), change)
            old, new = both(u)[1], both(u + way)[1]
            moved = jnp.max(pushes * jnp.abs(change)) / jnp.max(pushes)
            most = jnp.maximum(moved, jnp.max(jnp.abs(new - old)) / (ATOL + jnp.max(jnp.abs(new))))
            # Near the end a whole step is at most half of the last one, until it is rounding.
            ended = (share == 1.0) & (most <= tolerance) | ((most < 1e-6) & (most > 0.5 * last))
            return u + way, logs, most, count + 1, ended

        first = self._away(before, start) if by_theta else start + begun
        logs = self.exponents(before, start) - self._logs(before)[0]
        state = first, logs, jnp.full_like(s, jnp.inf), jnp.zeros((), int), jnp.asarray(False)
        u, _, _, _, found = lax.while_loop(lambda state: (state[3] < linalg.NEWTON_STEPS) & ~state[4], body, state)
        return both(u)[1] - start, found

    def relaxed(self, s: Scalar, r: Vector, rate: Vector, usable: Any) -> tuple[Vector, Margins]:
        x, found = self.solved(s, 2.0 * s, s, r, s * rate, float(jnp.finfo(r.dtype).eps) ** 0.5)
        found = found & usable(2.0 * s, self.onwards(2.0 * s, r + x, x / s))
        s, r, rate = jax.tree.map(lambda a, b: jnp.where(found, a, b), (2.0 * s, r + x, x / s), (s, r, rate))
        return self.onwards(s, r, rate), self.velocity(s, r)[1]

    def velocity(self, s: Scalar, r: Vector) -> tuple[Vector, Margins]:
        """dz/ds, of any size, and the multipliers that make it."""
        exponents = self.exponents(s, r)
        pushes = jnp.exp(exponents - jnp.max(exponents))
        return self.flow.pushed(pushes), pushes

    def onwards(self, s: Scalar, r: Vector, rate: Vector) -> Vector:
        """Of any size, the velocity of θ where dr/ds = `rate`, for p < 2 the θ of the velocity of z."""
        moving = self._steady(s, r) + rate
        if self.exponent < 2.0:
            return self.potential.conjugate.map(moving / positive_or_one(jnp.max(jnp.abs(moving))))
        return self.potential.conjugate.turned(self.dual + self._share(s, r), moving)

    def begun(self) -> Vector:
        """r at the start, where z is its own: roundings of ζ are those of z there."""
        first = jnp.zeros((), self.dual.dtype)
        return -self.length(first) * jnp.exp(self._logs(first)[1]) * self.dual


def mirror_frame(
    flow: AffineFlow, potential: AbstractPotential, solution: Any, start: Vector, growing: Bool[Array, " n"]
) -> MirrorFrame:
    """The frame of the solution of the program in the norm of a potential, of size zero where no margin grows."""
    p = potential.exponent
    size = jnp.where(jnp.any(growing), potential.power(solution.primal), 0.0)
    # N*(A*λ) is one: ζ is that times the norm of w to the power p - 1, and in the span to roundings.
    dual = size ** (1.0 - 1.0 / p) * (jnp.where(growing, solution.dual, 0.0) @ flow.rows)
    growth = potential.conjugate.map(dual)
    pace = flow.rows @ growth
    near = jnp.abs(pace - 1.0) <= ROUNDED
    log_unit = -jax.nn.logsumexp(flow.log_slopes(flow.offsets))
    return MirrorFrame(flow, growth, dual, jnp.where(near, 1.0, pace), start, log_unit, growing, potential)
