r"""Steps of a piecewise smooth flow: piece by piece, across kinks and along them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxflow._core import RESULTS, ScaledGradient, all_finite, as_integer, check_kind, tree_scale
from jaxflow.flow.pieces import ROUNDINGS, VANISHING, Kinks, Mode, Pieces, size_of
from jaxflow.flow.solvers import as_terms
from jaxflow.flow.system import System, system_of

# A kink is passed where its switch is on the wrong side by this share of its size so far: a hundred thousand roundings
# of what the projection onto a kink leaves.
PASSED = 1e-11
# A kink is left where its gate is out of [0, 1] by this share of the size of gates. The speed at which it is left is
# then positive beyond doubt.
LEFT = 1e-8
# What gates and speeds, in that size, may be off by in a mode that is consistent.
CONSISTENT = 10 * LEFT
# Complementarity problems for one mode: as Newton's method, each squares the error of the last.
ROUNDS = 8
# A step of this share of the variable that still cannot be finished is the last.
SHORTEST = 1e-12


class SlidingState(eqx.Module):
    """The solver's state: the piece that the flow is on, and how many kinks it has crossed, met to slide, and left."""

    mode: Mode
    crossed: Int[Array, ""]
    met: Int[Array, ""]
    left: Int[Array, ""]


class _Under(eqx.Module):
    """A step under way."""

    s: Float[Array, ""]
    state: PyTree
    now: SlidingState
    error: PyTree
    # The end of this piece and the kinks that end it, once they are known.
    target: Float[Array, ""]
    which: Bool[Array, " g"]
    usable: Bool[Array, ""]
    settled: Bool[Array, ""]
    pieces: Int[Array, ""]
    ends: Float[Array, " P"]
    dense: PyTree


class PiecewiseInterpolation(diffrax.AbstractLocalInterpolation):
    """The interpolation of each piece of a step."""

    t0: Any
    t1: Any
    ends: Float[Array, " P"]
    starts: Float[Array, " P"]
    dense: PyTree
    kind: Callable[..., diffrax.AbstractLocalInterpolation] = eqx.field(static=True)

    def evaluate(self, t0: Any, t1: Any | None = None, left: bool = True) -> PyTree:
        # The first piece that ends there or later; pieces that were not needed end at minus infinity.
        index = jnp.argmax(self.ends >= jnp.minimum(t0, jnp.max(self.ends)))
        one = jax.tree.map(lambda x: x[index], (self.starts, self.ends, self.dense))
        return self.kind(t0=one[0], t1=one[1], **one[2]).evaluate(t0)


class Filippov(diffrax.AbstractSolver):
    r"""The flow of a piecewise smooth risk: ReLU networks, MLP heads, hinge losses.

    Between kinks the field is smooth, and `method` takes its steps. A step ends where a kink is met, to the accuracy
    of the method's interpolation. There, with normal n of the kink $z=0$ and the gates c of its two sides
    (`jaxflow._core.kinks`), $\dot z=a+Mc$ decides:

    - it is **crossed** where $\dot z$ has the same sign beyond it: the step goes on with the other side's field, to the
      full order of the method;
    - otherwise the flow **slides**. Filippov's solution is the convex combination of both sides with $\dot z=0$,
      $c=-M^{-1}a$, which for a gradient flow is the orthogonal projection of $-\nabla L$ onto the tangent space of the
      kinks that it slides on; it leaves one of them where its gate leaves [0, 1].

    Several kinks at once are a complementarity problem for c, solved by exchanging one at a time. M depends on c where
    kinks follow each other (two layers, model and loss): there it is solved again around its solution. Where kinks
    block every direction the flow stops.

    For `Weights` and `Scores`, and risks whose kinks can be found: comparisons, maxima and absolute values in models,
    in heads of attention, and in losses given as functions of the margin.

    **Arguments:** `method`: the solver of a piece (Diffrax's); `pieces`: the most kinks in one step. A step that meets
    more kinks, or whose gates are not found, is rejected; a rejected step of length $10^{-12}s$ ends the path with the
    result `sliding`.

    Filippov (1988), *Differential Equations with Discontinuous Righthand Sides*.

    **Example:**

    ```python
    relu = jf.models.CombinedAttention.init(jax.random.key(1), data, jf.models.MLPHead(jnp.eye(4)))
    path = jf.integrate(risk, relu, clock="log_time", until=2.0, solver=jf.Filippov())
    path.stats["num_crossed_kinks"], path.stats["num_met_kinks"]
    ```
    """

    method: diffrax.AbstractSolver = diffrax.Tsit5()
    pieces: int = eqx.field(static=True, default=8)
    term_structure: ClassVar[Any] = diffrax.AbstractTerm

    def __check_init__(self) -> None:
        check_kind("method", self.method, diffrax.AbstractSolver, "a solver of Diffrax")
        as_integer("pieces", self.pieces, 1)

    @property
    def interpolation_cls(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        kind = self.method.interpolation_cls
        return lambda **found: PiecewiseInterpolation(kind=kind, **found)

    def order(self, terms: Any) -> int | None:
        return self.method.order(terms)

    def error_order(self, terms: Any) -> Any:
        return self.method.error_order(terms)

    def func(self, terms: Any, t0: Any, y0: PyTree, args: Any) -> PyTree:
        return terms.vf(t0, y0, args)

    def init(self, terms: Any, t0: Any, t1: Any, y0: PyTree, args: Any) -> SlidingState:
        system = system_of(terms, "Filippov")
        mode = mode_at(Kinks(system.coordinates, system.context), system.unpack(t0, y0)[0])
        zero = jnp.zeros((), int)
        return SlidingState(mode, zero, jnp.sum(mode.sliding), zero)

    def step(
        self, terms: Any, t0: Any, t1: Any, y0: PyTree, args: Any, solver_state: SlidingState, made_jump: Any
    ) -> tuple[PyTree, PyTree, Any, SlidingState, Any]:
        system = system_of(terms, "Filippov")

        def piece(s: Array, target: Array, y: PyTree, mode: Mode) -> tuple[PyTree, PyTree, Any]:
            inside = as_terms(_on(system, mode).field, self.method)
            begun = self.method.init(inside, s, target, y, args)
            after, error, dense, _, _ = self.method.step(inside, s, target, y, args, begun, made_jump=False)
            return after, error, dense

        def blank(x: Any) -> Array:
            return jnp.zeros((self.pieces, *x.shape), x.dtype)

        shapes = eqx.filter_eval_shape(piece, t0, t1, y0, solver_state.mode)
        none = jnp.zeros_like(solver_state.mode.sliding)
        start = _Under(
            t0,
            y0,
            solver_state,
            jax.tree.map(jnp.zeros_like, y0),
            t1,
            none,
            jnp.asarray(True),
            jnp.asarray(True),
            jnp.zeros((), int),
            jnp.full(self.pieces, -jnp.inf, jnp.result_type(t1)),
            jax.tree.map(blank, shapes[2]),
        )

        def going(under: _Under) -> Array:
            return under.usable & under.settled & (under.s < t1) & (under.pieces < self.pieces)

        def body(under: _Under) -> _Under:
            mode = under.now.mode
            after, error, dense = piece(under.s, under.target, under.state, mode)
            usable = all_finite((after, error))
            left = _room(system, under.target, after, mode, mode.sliding)
            hit = left < 0
            met = jnp.any(hit) & ~jnp.any(under.which) & usable
            path = self.method.interpolation_cls(t0=under.s, t1=under.target, **dense)

            def room(s: Array) -> Array:
                return jnp.where(hit, _room(system, s, path.evaluate(s), mode, mode.sliding & hit), jnp.inf)

            at, found = _first(room, under.s, under.target, jnp.where(hit, left, jnp.inf), met)
            done = _finished(system, under.target, after, under)
            # How far the interpolation was off the kink is an error too: of long implicit steps the larger one. What an
            # earlier projection has moved across a kink is met at once, and no shorter step would change it.
            at_once = under.target - under.s <= SHORTEST * jnp.maximum(t1, 1.0)
            moved = jax.tree.map(lambda a, b: jnp.where(at_once, 0.0, a - b), done.state[0], after[0])
            error = (jax.tree.map(lambda a, b: jnp.abs(a) + jnp.abs(b), error[0], moved), *error[1:])
            done = replace(
                done,
                s=under.target,
                error=jax.tree.map(lambda a, b: a + jnp.abs(b), under.error, error),
                target=jnp.asarray(t1),
                which=none,
                pieces=under.pieces + 1,
                ends=under.ends.at[under.pieces].set(under.target),
                dense=jax.tree.map(lambda all, one: all.at[under.pieces].set(one), under.dense, dense),
            )
            shortened = replace(under, target=at, which=found)
            new = jax.tree.map(lambda a, b: jnp.where(met, a, b), shortened, done)
            return replace(new, usable=usable)

        end = lax.while_loop(going, body, start)
        through = end.usable & end.settled & (end.s >= t1)
        hopeless = ~through & end.usable & (t1 - t0 <= SHORTEST * jnp.maximum(t1, 1.0))
        error = jax.tree.map(
            lambda x: jnp.where(through, x, jnp.where(hopeless, 0.0, jnp.inf)).astype(x.dtype), end.error
        )
        starts = jnp.concatenate([jnp.asarray(t0)[None], end.ends[:-1]])
        result: Any = RESULTS.where(hopeless, RESULTS.sliding, RESULTS.successful)  # pyright: ignore
        return end.state, error, dict(ends=end.ends, starts=starts, dense=end.dense), end.now, result

    def scaled_gradient(self, system: System, s: Array, extended: PyTree, state: SlidingState) -> ScaledGradient:
        """The gradient in the coordinates: on kinks, of Filippov's solution."""
        x, _, _ = system.unpack(s, extended)
        inside = _on(system, state.mode)
        return inside.coordinates.field(inside.context, x)

    def stats(self, state: SlidingState) -> dict[str, Array]:
        """How many kinks were crossed, met and left again, and which the flow slides on at its end `(g,)`."""
        return {
            "num_crossed_kinks": state.crossed,
            "num_met_kinks": state.met,
            "num_left_kinks": state.left,
            "sliding": state.mode.sliding,
        }


def mode_at(kinks: Kinks, x: PyTree, near: Any = None) -> Mode:
    """The piece on which the flow continues from a state: which of the kinks that it is on (or as `near` to) it slides
    on."""
    found = kinks.at(x)
    mode = Mode.of(found)
    distances, terms = kinks.distances(x, mode.gates)
    # Roundings are those of each switch: units may be of any size, and so may inputs.
    mode = replace(mode, size=jnp.maximum(mode.size, terms))
    on = jnp.abs(found.switches) <= PASSED * terms if near is None else jnp.abs(distances) <= near
    on &= jnp.isfinite(distances)
    # Which side roundings are on says nothing. A unit that has come to its kink and rests there, without a derivative,
    # stays inactive, as JAX has it of a switch of zero.
    at_zero = Mode(jnp.where(on, 0.0, mode.gates), mode.sliding, mode.size)
    return lax.cond(jnp.any(on), lambda: _settle(kinks, x, at_zero, on, jnp.zeros_like(on))[0], lambda: mode)


def _on(system: System, mode: Mode) -> System:
    """The system of one piece."""
    return replace(system, coordinates=Pieces(system.coordinates), context=(system.context, mode))


def _room(system: System, s: Array, extended: PyTree, mode: Mode, held: Bool[Array, " g"]) -> Float[Array, " g"]:
    """Negative where the mode has ended: a kink passed, or a gate of one that is `held` has left [0, 1]."""
    x, kinks = system.unpack(s, extended)[0], Kinks(system.coordinates, system.context)
    apart = apart_from(kinks, x, mode)

    def inside() -> Array:
        found = kinks.across(x, mode, mode.sliding)
        turned = found.turned(found.on, found.nearest)
        room = jnp.where(found.on, found.inside(turned) + found.doubt(LEFT), jnp.inf)
        return jnp.full_like(apart, jnp.inf).at[found.index].set(room)

    inner = lax.cond(jnp.any(held), inside, lambda: jnp.full_like(apart, jnp.inf))
    return jnp.where(mode.sliding, inner, apart)


def apart_from(kinks: Kinks, x: PyTree, mode: Mode) -> Float[Array, " g"]:
    """How far a state is on the mode's side of each kink; negative beyond doubt where it is on the other side."""
    z = kinks.at(x, mode.gates).switches
    return jnp.where(mode.gates > 0.5, z, -z) + PASSED * mode.size


def _settle(kinks: Kinks, x: PyTree, mode: Mode, on: Array, which: Array) -> tuple[Mode, Array]:
    """The mode that goes on from a state on the kinks `on`, `which` of them just met or left; whether it was found.

    Speeds are affine in gates, and one complementarity problem gives them, but where kinks follow each other (two
    layers, model and loss): there it is solved again around its solution, as in Newton's method.
    """
    slid, met = mode.sliding & on, which & on
    # What was met goes to its other side, what has left to the side through which its gate left: the nearer one.
    fixed = jnp.where(slid, mode.gates > 0.5, jnp.where(met, mode.gates <= 0.5, mode.gates > 0.5))
    first = kinks.across(x, mode, on)
    unit = jnp.ones_like(mode.gates).at[first.index].set(first.unit)
    most = 4 * mode.gates.size + 8

    def again(carry: tuple) -> Array:
        *_, by, rounds = carry
        return (by > 0) & (rounds < ROUNDS)

    def solve(carry: tuple) -> tuple:
        gates, free, fixed, found, _, rounds = carry
        index, attracts = found.index, jnp.diagonal(found.matrix) < 0

        def wrong(free: Array, fixed: Array) -> tuple[Array, Array]:
            turned = found.turned(free, fixed.astype(gates.dtype))
            speeds = found.speeds(turned)
            by = jnp.where(free, -found.inside(turned), jnp.where(fixed, -speeds, speeds))
            return turned, jnp.where(found.on, by - found.doubt(CONSISTENT), -jnp.inf)

        def going(carry: tuple) -> Array:
            free, fixed, count = carry
            return (jnp.max(wrong(free, fixed)[1]) > 0) & (count < most)

        def exchange(carry: tuple) -> tuple:
            free, fixed, count = carry
            turned, by = wrong(free, fixed)
            k = jnp.argmax(by)
            nearer = found.nearest[k] + turned[k] > 0.5
            fixed = fixed.at[k].set(jnp.where(free[k], nearer, jnp.where(attracts[k], fixed[k], ~fixed[k])))
            return free.at[k].set(~free[k] & attracts[k]), fixed, count + 1

        start = free[index] & found.on, fixed[index], jnp.zeros((), int)
        one, side, _ = lax.while_loop(going, exchange, start)
        there = jnp.clip(found.nearest + wrong(one, side)[0], 0.0, 1.0)
        gates = gates.at[index].set(jnp.where(found.on, there, gates[index]))
        free, fixed = free.at[index].set(one), fixed.at[index].set(side)
        # What the speeds are at these gates, in units of the gates at the beginning, beyond what `turned` leaves.
        found = kinks.across(x, replace(mode, gates=gates), on)
        index, turned = found.index, gates[found.index] - found.nearest
        speed = (found.speed + found.matrix @ turned) / unit[index]
        left = jnp.abs(speed) - 2.0 * VANISHING * jnp.abs(turned)
        by = jnp.where(free[index], left, jnp.where(fixed[index], -speed, speed))
        by = jnp.max(jnp.where(found.on, by - first.doubt(CONSISTENT), -jnp.inf), initial=-jnp.inf)
        return gates, free, fixed, found, by, rounds + 1

    begun = mode.gates, slid & ~met, fixed, first, jnp.full_like(first.terms, jnp.inf), jnp.zeros((), int)
    gates, free, _, _, by, _ = lax.while_loop(again, solve, begun)
    return Mode(gates, jnp.where(on, free, mode.sliding), mode.size), by <= 0


def _finished(system: System, s: Array, after: PyTree, under: _Under) -> _Under:
    """The state at the end of a piece, on its kinks, and the mode that goes on from there."""
    x, kinks = system.unpack(s, after)[0], Kinks(system.coordinates, system.context)
    old = under.now.mode
    which = under.which
    on = old.sliding | which
    x, old = lax.cond(jnp.any(on), lambda x: kinks.projected(x, old, on), lambda x: (x, old), x)
    z = kinks.at(x, old.gates).switches
    old = Mode(old.gates, old.sliding, jnp.maximum(old.size, size_of(z)))
    settled = (old, jnp.asarray(True))
    mode, known = lax.cond(jnp.any(on), lambda: _settle(kinks, x, old, on, which), lambda: settled)
    y, w, length = after
    rho, _, _ = system.scale(s)
    if w is not None:
        # w = rho (1 + t) / (dt/ds), and dt/ds jumps with the gradient.
        w = w * jnp.exp(_on(system, old).log_rate(s, x) - _on(system, mode).log_rate(s, x))
    crossed = jnp.sum(which & ~old.sliding & ~mode.sliding)
    now = SlidingState(
        mode,
        under.now.crossed + crossed,
        under.now.met + jnp.sum(mode.sliding & ~old.sliding),
        under.now.left + jnp.sum(old.sliding & ~mode.sliding),
    )
    return replace(under, state=(tree_scale(1.0 / rho, x), w, length), now=now, settled=known)


def _first(
    room: Callable[[Array], Array], start: Array, end: Array, at_end: Array, wanted: Array
) -> tuple[Array, Array]:
    """The first s at which some of `room` `(g,)` is negative, from above, and which; `end`, where it is `at_end`, if
    nothing is `wanted`. It is located to roundings of the step, or of s itself."""
    least = jnp.maximum(ROUNDINGS * (end - start), 4.0 * jnp.finfo(end.dtype).eps * jnp.abs(end))

    def going(carry: tuple[Array, ...]) -> Array:
        low, high, *_ = carry
        return wanted & (high - low > least)

    def body(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, at_low, at_high, which, count = carry
        # Regula falsi with the Illinois rule; every third point halves the interval. The start itself comes first.
        share = jnp.where(count % 3 == 0, 0.5, at_low / (at_low - at_high))
        s = jnp.where(count == 0, start, low + jnp.clip(share, 1e-3, 1.0 - 1e-3) * (high - low))
        left = room(s)
        value = jnp.min(left, initial=jnp.inf)
        negative = value < 0
        return (
            jnp.where(negative, low, s),
            jnp.where(negative, s, high),
            jnp.where(negative, 0.5 * at_low, value),
            jnp.where(negative, value, 0.5 * at_high),
            jnp.where(negative, left < 0, which),
            count + 1,
        )

    lowest = jnp.min(at_end, initial=jnp.inf)
    begun = (start, end, jnp.ones_like(lowest), lowest, at_end < 0, jnp.zeros((), int))
    _, high, _, _, which, _ = lax.while_loop(going, body, begun)
    return high, which
