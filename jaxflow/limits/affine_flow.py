r"""Gradient flow of a model that is affine in its parameters, followed until its limit is certified.

With rows $a_k$, the gradients of the margins, these are $q=q_0+A(\theta-\theta_0)$, and the flow stays in
$\theta_0+\mathrm{span}(a_k)$. Let w be a direction with $Aw\ge0$, zero where there is none, and κ the rate of the tail.
In the frame

$$\theta-\theta_0=\frac s\kappa w+r,\qquad s=\log(1+t/u):\qquad\frac{dr}{ds}=\sum_ke^{E_k}a_k-\frac w\kappa,
\qquad E_k=\log|\partial\ell/\partial q_k|+s+\log u,$$

the equation is that of the flow, exactly, from the start to any t: r grows no faster than log s where w is the flow's
direction, and exponents $E_k$ are of order one where the margins themselves are $10^{10}$. Of a wrong w the path leaves
the frame, and its velocity shows it.

Margins that do not grow come to rest, where their pushes cancel, and $e^s$ times the roundings of these would soon be
rates of the path. Beyond s = 9 they are held where they are, and the path goes on with their span projected out. What
is left of their way is Newton's method's, and changes nothing else: the direction depends on no offset of a margin.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import linalg, positive_or_one
from jaxflow._core.linalg import ROUNDED
from jaxflow.flow.drive import FIRST_STEP
from jaxflow.flow.solvers import state_norm
from jaxflow.losses import AbstractLoss, log_slope_excess, tail_rate

# s at which margins that do not grow are held: roundings of their rates are then 1e-12, which `ATOL` allows. (Held
# at s = 16, 15 of 34 quasi-separable instances found no step shortly before it.)
REST = 9.0
# Of the path, which is contractive, so that no error grows, and, a tenth of it, of Newton's method. What is claimed is
# measured at the end.
RTOL, ATOL = 0.1, 1e-9

# A number, a point or a velocity in the span, and a number for each margin.
Scalar = Float[Array, ""]
Vector = Float[Array, " m"]
Margins = Float[Array, " n"]


class AffineFlow(eqx.Module):
    r"""The flow in coordinates of the span: `rows` B `(n, m)`, `offsets` $q_0$ of n margins; the loss is a sum over
    data, of `group` margins each in a row, with `weights`, which may be zero.

    `products`: from x to Bx as the model computes it. With C classes it needs a share 1/C of the rows' numbers, and the
    Jacobian of the flow, products with all m coordinates and back, as much less.
    """

    loss: AbstractLoss
    rows: Float[Array, "n m"]
    products: Callable[[Vector], Margins]
    offsets: Margins
    weights: Float[Array, " k"]
    group: int = eqx.field(static=True)

    def pushed(self, pushes: Margins) -> Vector:
        r"""$B^\top$ `pushes`."""
        transposed = jax.linear_transpose(self.products, jnp.zeros_like(self.rows[0]))
        return transposed(pushes)[0]

    def excess(self, margins: Margins) -> Margins:
        """`log_slope_excess` of every margin among those of its datum."""
        return log_slope_excess(self.loss, margins.reshape(-1, self.group)).reshape(-1)

    def log_slopes(self, margins: Margins) -> Margins:
        r"""log of the multipliers, $|\partial\ell/\partial q_k|$ times the weight of the datum."""
        return self.excess(margins) - tail_rate(self.loss) * margins + self.log_weights()

    def log_weights(self) -> Margins:
        """log of the weight of every margin's datum."""
        return jnp.repeat(jnp.log(self.weights), self.group)


class AbstractFrame(eqx.Module):
    """What `path_of` and the limit ask of a flow that is seen from its growth: `growth` w, `pace` of the margins,
    `log_unit` log u; `ahead`: κ times how many w there are in the parameters at s = 0."""

    ahead: eqx.AbstractClassVar[float]
    flow: eqx.AbstractVar[AffineFlow]
    growth: eqx.AbstractVar[Vector]
    pace: eqx.AbstractVar[Margins]
    log_unit: eqx.AbstractVar[Scalar]

    @abc.abstractmethod
    def begun(self) -> Vector:
        """r at the start."""

    @abc.abstractmethod
    def exponents(self, s: Scalar, r: Vector) -> Margins:
        """E: log of the multipliers in the time s, all of them."""

    @abc.abstractmethod
    def field(self, s: Scalar, r: Vector) -> Vector:
        """dr/ds."""

    @abc.abstractmethod
    def solved(
        self, before: Scalar, s: Scalar, weight: Scalar, start: Vector, begun: Vector, tolerance: float
    ) -> tuple[Vector, Bool[Array, ""]]:
        """x = `weight` f(s, `start` + x), f the field, and whether it was found, for the step from `before`."""

    @abc.abstractmethod
    def velocity(self, s: Scalar, r: Vector) -> tuple[Vector, Margins]:
        """The velocity that the multipliers of the margins that grow make, of any size, and these multipliers."""

    @abc.abstractmethod
    def onwards(self, s: Scalar, r: Vector, rate: Vector) -> Vector:
        """The velocity of the parameters where dr/ds = `rate`."""

    @abc.abstractmethod
    def relaxed(self, s: Scalar, r: Vector, rate: Vector, usable: Any) -> tuple[Vector, Margins]:
        """The velocity and its multipliers at the end of a path, after a step of implicit Euler from s to 2s."""

    @abc.abstractmethod
    def beside(self, s: Scalar, r: Vector) -> Vector:
        """What else the parameters have moved."""

    def length(self, s: Scalar) -> Scalar:
        """How many w there are in the parameters."""
        return (s + self.ahead) / tail_rate(self.flow.loss)

    def tails(self, s: Scalar, moved: Margins) -> Margins:
        """E, where what is beside the w has moved the margins to `moved`."""
        flow, kappa = self.flow, tail_rate(self.flow.loss)
        tail = flow.excess(self.pace * self.length(s) + moved) - kappa * moved
        return tail - (self.pace - 1.0) * (s + self.ahead) - self.ahead + self.log_unit + flow.log_weights()


class Frame(AbstractFrame):
    """A flow seen from $ws/κ$: `growth` w, `pace` Bw with what is equal made equal, `log_unit` log u; `growing` D, and
    `away`: an orthonormal basis, in its rows, of what does not move the others, where D goes on when these are held."""

    ahead: ClassVar[float] = 0.0
    flow: AffineFlow
    growth: Vector
    pace: Margins
    log_unit: Scalar
    growing: Bool[Array, " n"]
    away: Float[Array, "m m"]

    def exponents(self, s: Scalar, r: Vector) -> Margins:
        return self.tails(s, self.flow.offsets + self.flow.products(r))

    def field(self, s: Scalar, r: Vector) -> Vector:
        """dr/ds; beyond `REST` of the margins that grow alone."""
        exponents = self.exponents(s, r)
        held = s > REST
        pushes = jnp.exp(jnp.where(self.growing | ~held, exponents, -jnp.inf))
        rates = self.flow.pushed(pushes)
        return jnp.where(held, self._freed(rates), rates) - self.growth / tail_rate(self.flow.loss)

    def velocity(self, s: Scalar, r: Vector) -> tuple[Vector, Margins]:
        """The velocity of the margins that grow, of any size, and the multipliers that make it."""
        exponents = jnp.where(self.growing, self.exponents(s, r), -jnp.inf)
        top = jnp.max(exponents)
        pushes = jnp.exp(exponents - jnp.where(jnp.isfinite(top), top, 0.0))
        return self._freed(self.flow.pushed(pushes)), pushes

    def onwards(self, s: Scalar, r: Vector, rate: Vector) -> Vector:
        return self.growth / tail_rate(self.flow.loss) + rate

    def beside(self, s: Scalar, r: Vector) -> Vector:
        return r

    def begun(self) -> Vector:
        return jnp.zeros_like(self.growth)

    def solved(
        self, before: Scalar, s: Scalar, weight: Scalar, start: Vector, begun: Vector, tolerance: float
    ) -> tuple[Vector, Bool[Array, ""]]:
        """By `convex_newton` from `begun` or from zero, whichever leaves less."""
        counted = self.growing | (s <= REST)

        def left(x: Array) -> Array:
            return weight * self.field(s, start + x) - x

        def factored(x: Array) -> Any:
            slopes = jax.jacfwd(lambda y: self.field(s, y))(start + x)
            return linalg.lu_factor(jnp.eye(x.size, dtype=x.dtype) - weight * slopes)

        def changed(x: Array, way: Array) -> Array:
            exponents = jnp.where(counted, self.exponents(s, start + x), -jnp.inf)
            changes = jnp.exp(exponents - jnp.max(exponents)) * jnp.abs(self.flow.products(way))
            return jnp.max(changes, initial=0.0, where=counted)

        none = jnp.zeros_like(begun)
        sizes = [jnp.linalg.norm(left(x)) for x in (none, begun)]
        x = jnp.where(sizes[1] < sizes[0], begun, none)
        return convex_newton(left, factored, linalg.lu_solve, changed, x, tolerance)

    def relaxed(self, s: Scalar, r: Vector, rate: Vector, usable: Any) -> tuple[Vector, Margins]:
        """Where roundings leave its equation unsolved, or a velocity that is not `usable(s, v)`, no step is taken.

        The path leaves the velocity with an error of the size of its tolerance, which this step damps by the rate of
        the path times s. Where r is large its products with the rows have roundings that the multipliers show: they are
        an offset of the margins, fixed, and the step is taken from zero. A velocity is w/κ + dr/ds, of the equation: a
        sum over multipliers, whose sum is ‖w‖², has the roundings of these.
        """
        moved = eqx.tree_at(lambda f: f.flow.offsets, self, self.flow.offsets + self.flow.products(r))
        start = jnp.zeros_like(r)
        x, found = moved.solved(s, 2.0 * s, s, start, start, float(jnp.finfo(r.dtype).eps))
        here = (*self.velocity(s, r), rate)
        there = (*moved.velocity(2.0 * s, x), x / s)
        steady = self.growth / tail_rate(self.flow.loss)
        found = found & usable(2.0 * s, steady + x / s)
        summed, pushes, rate = jax.tree.map(lambda a, b: jnp.where(found, a, b), there, here)
        velocity = steady + rate
        return velocity * jnp.linalg.norm(summed) / positive_or_one(jnp.linalg.norm(velocity)), pushes

    def _freed(self, rates: Vector) -> Vector:
        """The part that moves none of the margins that do not grow; a Jacobian has as many of these as coordinates."""
        away = self.away
        return lax.cond(jnp.all(self.growing), lambda x: x, lambda x: away.T @ (away @ x), rates)


def frame_of(flow: AffineFlow, growth: Vector, growing: Bool[Array, " n"], away: Any) -> Frame:
    """The frame of a direction of growth that gives the margins of its support the pace one; time begins where the
    multipliers together move something, so that no sum of many has roundings above one of a single one."""
    pace = flow.rows @ growth
    # Roundings of a pace, times s, must not become an exponent.
    near = jnp.abs(pace - 1.0) <= 0.1 * ROUNDED
    none = jnp.abs(pace) <= 0.1 * ROUNDED * jnp.max(jnp.abs(pace), initial=1.0)
    log_unit = -jax.nn.logsumexp(flow.log_slopes(flow.offsets))
    return Frame(flow, growth, jnp.where(near, 1.0, jnp.where(none, 0.0, pace)), log_unit, growing, away)


class Path(eqx.Module):
    """An end: s, r, the velocity and its multipliers at 2s, whether the budget of steps sufficed, and the steps taken
    and rejected."""

    s: Scalar
    r: Vector
    velocity: Vector
    pushes: Margins
    done: Bool[Array, ""]
    steps: Int[Array, ""]
    rejected: Int[Array, ""]


def path_of(frame: AbstractFrame, until: Scalar, max_steps: int, stop: Any) -> Path:
    """The flow from its start to x = `until`, x = log(1 + s), by implicit Euler in x, with half the change of its slope
    as the error of a step. `stop(s, v)` may end it before, v the velocity w/κ + dr/ds.

    Not by Diffrax's, whose error takes the field at the last point: what the last equation was solved to, times a large
    rate. A velocity that is summed from the multipliers has the errors of these, too.
    """
    edge = jnp.log1p(jnp.asarray(REST, until.dtype))
    # Rates are differences of pushes and of w, whose roundings are those of its length.
    least = ATOL * jnp.maximum(1.0, jnp.linalg.norm(frame.growth))

    def slope_at(s: Array, r: Array) -> Array:
        return frame.field(s, r) * (1.0 + s)

    def going(state: _State) -> Array:
        # A step that is a rounding of x leads nowhere.
        some = state.length > jnp.finfo(state.x.dtype).eps * state.x
        return (state.steps < max_steps) & (state.x < until) & ~state.stopped & some

    def body(state: _State) -> _State:
        x, r, slope, length = state.x, state.r, state.slope, state.length
        end = jnp.minimum(x + length, jnp.where(x < edge, edge, until))
        s, taken = jnp.expm1(end), end - x
        way, solved = frame.solved(jnp.expm1(x), s, taken * jnp.exp(end), r, taken * slope, 0.1 * RTOL)
        allowed = least + RTOL * jnp.maximum(jnp.abs(r), jnp.abs(r + way))
        error = jnp.where(solved, state_norm((0.5 * (way - taken * slope) / allowed,)), jnp.inf)
        accepted = error <= 1.0
        stopped = accepted & stop(s, frame.onwards(s, r + way, way / (taken * jnp.exp(end))))
        # Beyond the edge it is another field.
        following = lax.cond(
            accepted & (end == edge), lambda: slope_at(jnp.nextafter(s, jnp.inf), r + way), lambda: way / taken
        )
        new = _State(end, r + way, following, length, stopped, state.steps, state.rejected)
        new = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, state)
        factor = jnp.clip(0.9 / jnp.sqrt(jnp.maximum(error, 1e-3)), 0.2, 5.0)
        return new._replace(
            length=jnp.where(accepted, jnp.maximum(length, taken), taken) * factor,
            steps=state.steps + 1,
            rejected=state.rejected + ~accepted,
        )

    start, count = frame.begun(), jnp.zeros((), int)
    first = jnp.full_like(until, FIRST_STEP)
    begun = _State(jnp.zeros_like(until), start, slope_at(jnp.zeros_like(until), start), first, until < 0, count, count)
    last = lax.while_loop(going, body, begun)
    s = jnp.expm1(last.x)
    velocity, pushes = frame.relaxed(s, last.r, last.slope / (1.0 + s), lambda s, v: stop(s, v) | ~last.stopped)
    return Path(s, last.r, velocity, pushes, last.stopped | (last.x >= until), last.steps, last.rejected)


class _State(NamedTuple):
    """A path under way: x, r, dr/dx, the length in x that the next step may have, whether it was stopped, counts."""

    x: Scalar
    r: Vector
    slope: Vector
    length: Scalar
    stopped: Bool[Array, ""]
    steps: Int[Array, ""]
    rejected: Int[Array, ""]


def convex_newton(
    left: Any, factored: Any, solve: Any, changed: Any, begun: Vector, tolerance: float
) -> tuple[Vector, Bool[Array, ""]]:
    """The minimum of a strictly convex function, of exponentials, and whether it was found, multipliers to a share
    `tolerance`.

    `left(x)`: minus its gradient; `factored(x)`: its Hessian, with which `solve` finds a step; `changed(x, way)`:
    the largest change of a multiplier by a step, as a share of the largest one. A step at whose end the function rises
    half as steeply as it fell at its beginning is halved. The Hessian is linear in the multipliers, and kept while they
    change by less than `RTOL`.
    """

    def body(state: tuple) -> tuple:
        x, rest, kept, last, count, _ = state
        way = solve(kept, rest)
        most = 0.5 * jnp.abs(jnp.dot(rest, way))

        def beyond(trial: tuple) -> Array:
            share, rest = trial
            return ~(-jnp.dot(rest, way) <= most) & (share > tolerance**2)

        def halved(trial: tuple) -> tuple:
            share = 0.5 * trial[0]
            return share, left(x + share * way)

        share, rest = lax.while_loop(beyond, halved, (jnp.ones_like(last), left(x + way)))
        x = x + share * way
        change = changed(x, way)
        # Near the end a whole step is at most half of the last one, until it is rounding.
        ended = (change <= tolerance) | ((change < 1e-6) & (change > 0.5 * last))
        kept = lax.cond(ended | (change <= RTOL), lambda: kept, lambda: factored(x))
        return x, rest, kept, change, count + 1, ended

    infinite = jnp.full((), jnp.inf, begun.dtype)
    state = begun, left(begun), factored(begun), infinite, jnp.zeros((), int), jnp.asarray(False)
    x, _, _, _, _, found = lax.while_loop(lambda state: (state[4] < linalg.NEWTON_STEPS) & ~state[5], body, state)
    return x, found
