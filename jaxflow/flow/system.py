"""The flow as a system of differential equations in the variable of a clock."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxflow._core import RESULTS, Code, ScaledGradient, positive_or_one, require, tree_norm, tree_scale
from jaxflow.flow.clocks import AbstractClock
from jaxflow.flow.coordinates import AbstractCoordinates
from jaxflow.flow.coordinates.base import LOG_ZERO, safe_log
from jaxflow.flow.stopping import AbstractStop, Situation
from jaxflow.models.base import default_trainable
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Point, Regime, Trajectory


@eqx.filter_jit
def _field(coordinates: AbstractCoordinates, context: PyTree, state: PyTree) -> ScaledGradient:
    """The field of the coordinates, traced once for the dozen places of a program that want it."""
    return coordinates.field(context, state)


def _nobody_certifies(gap: Any) -> Array:
    raise ValueError("stop: SelfCertified needs a `Drive` with MultiplierNewton; use CertificateGap")


class System(eqx.Module):
    r"""The extended system against the clock's variable s: `(y, w, b)`.

    With coordinates x and $\rho=ue^s$ (for a clock whose lengths grow like that; otherwise $\rho=1$):

    - $y=x/\rho$, of order one. An implicit method solves for rates to tolerances that are absolute where a
      component vanishes; the rates' rounding errors grow like $|x|\rho\varepsilon$ and would pass any fixed
      tolerance (measured: Newton's method fails from an arc length of 4e5 on).
    - $w=\rho(1+t)e^{-r}$ with $r=\log dt/ds$. $\log(1+t)$ itself would be a hopeless state: its rate
      $e^{r-\log(1+t)}$ overflows within one step. w obeys a linear equation and stays of order one; it is
      left out where the clock tells the time, or does not care.
    - $b=\ell/\rho$ of the arc length ℓ. Its equation is linear, and no clock of lengths lets ℓ grow faster than ρ. No
      controller watches it: as $\log(1+\ell)$ it came out of one step at 7e4 where a path left a saddle at length 10.

    Beyond the clock's cap the gradient is taken at $\min(\rho,\text{cap})\,y$ and w rests: log t is then
    $-(\rho/\text{cap})^L$ times the log scale there, to leading order. `degree` is L.
    """

    risk: EmpiricalRisk
    clock: AbstractClock
    coordinates: AbstractCoordinates
    context: PyTree
    degree: int

    def start(self, state: PyTree) -> PyTree:
        zero = jnp.zeros(())
        rho, _, _ = self.scale(zero)
        y = tree_scale(1.0 / rho, state)
        if not self.clock.integrates_time():
            return y, None, zero
        return y, rho * jnp.exp(-self.log_rate(zero, state)), zero

    def log_rho(self, s: Array) -> Array:
        """log ρ, beyond the cap too."""
        log_length = self.clock.log_length(s)
        return jnp.zeros(()) if log_length is None else log_length

    def scale(self, s: Array) -> tuple[Array, Array, Array]:
        """min(ρ, cap), ρ'/ρ, and log(ρ/cap) where that is positive, else 0."""
        log_length = self.clock.log_length(s)
        if log_length is None:
            return jnp.ones(()), jnp.zeros(()), jnp.zeros(())
        beyond = jnp.maximum(log_length - self.clock.log_cap(), 0.0)
        return jnp.exp(log_length - beyond), jnp.ones(()), beyond

    def unpack(self, s: Array, extended: PyTree) -> tuple[PyTree, Array | None, Array]:
        """Coordinates x (at most at the cap), (1 + t) e^{-r}, and the log of the arc length."""
        y, w, b = extended
        rho, _, _ = self.scale(s)
        return tree_scale(rho, y), None if w is None else w / rho, jnp.log(jnp.maximum(b, 0.0)) + self.log_rho(s)

    def model(self, state: PyTree, beyond: Array) -> Any:
        """The model at a state, which beyond the cap stands for a longer one."""
        context = self.context
        if not self.clock.is_exact():
            context = self.coordinates.shortened(context, jnp.exp(-beyond))
        return self.coordinates.decode(context, state)

    def rates(
        self, s: Array, state: PyTree, known: ScaledGradient | None = None
    ) -> tuple[ScaledGradient, Array, Array, Array]:
        """The scaled gradient, log‖G‖, log Σ|P| and the clock's log speed; `known`: a solver's own gradient there."""
        scaled = _field(self.coordinates, self.context, state) if known is None else known
        norm = tree_norm(scaled.gradient)
        log_norm = self.coordinates.log_norm(self.context, state, scaled)
        total = norm if scaled.multipliers is None else jnp.sum(jnp.abs(scaled.multipliers))
        log_sum = safe_log(total)
        log_speed = self.clock.log_speed(s, scaled.log_scale, log_norm, log_sum)
        # Where the gradient is exactly zero nothing moves, and no clock has a meaning.
        return scaled, log_norm, log_sum, jnp.where(norm > 0, log_speed, 0.0)

    def log_rate(self, s: Array, state: PyTree) -> Array:
        """r = log dt/ds."""
        scaled, _, _, log_speed = self.rates(s, state)
        return log_speed - scaled.log_scale

    def field(self, s: Array, extended: PyTree, args: Any) -> PyTree:
        y, w, b = extended
        rho, expansion, beyond = self.scale(s)
        state = tree_scale(rho, y)
        scaled, log_norm, _, log_speed = self.rates(s, state)
        velocity = tree_scale(-jnp.exp(log_speed - beyond), scaled.gradient)
        rate = jax.tree.map(lambda v, y: v / rho - expansion * y, velocity, y)
        length = jnp.where(log_norm > LOG_ZERO, jnp.exp(log_speed + log_norm - self.log_rho(s)), 0.0) - expansion * b
        if w is None:
            return rate, None, length

        # The scale is constant under differentiation; the factor that it scales is not.
        _, growth = jax.jvp(self.log_rate, (s, state), (jnp.ones_like(s), velocity))
        # Newton's matrix may ignore how the growth depends on the state: w feeds back into nothing, so one
        # more iteration settles it, and third derivatives of the model are saved.
        w_rate = rho + w * (expansion - jax.lax.stop_gradient(growth))
        return rate, jnp.where(beyond > 0, 0.0, w_rate), length

    def turning(self, s: Array, gradient: PyTree, y: PyTree) -> Array:
        """‖V − x/‖x‖‖ of the unit velocity V in the coordinates, and the share of what lies outside of them."""
        up, out = tree_norm(gradient), tree_norm(y)
        up, out = positive_or_one(up), positive_or_one(out)
        between = tree_norm(jax.tree.map(lambda g, y: g / up + y / out, gradient, y))
        rho, _, beyond = self.scale(s)
        return between + self.coordinates.left_behind(self.context) / (rho * out) * jnp.exp(-beyond)

    def log_time(self, s: Array, w: Array | None, log_scale: Array, log_speed: Array) -> Array:
        """log t from w = (1 + t) e^{-r}, from the clock, or beyond the cap from the multipliers' scale."""
        if self.clock.tells_time:
            return self.clock.log_time(s)
        # A w of one tells log t to leading order: where nobody asked for more, and where a long explicit step threw
        # w below zero (no controller watches it).
        w = jnp.ones(()) if w is None else w
        log_w = safe_log(jnp.where((w <= 0) & (s > 0), 1.0, w))
        exact = _log_expm1(log_speed - log_scale + log_w)
        _, _, beyond = self.scale(s)
        return jnp.where(beyond > 0, -log_scale * jnp.exp(self.degree * beyond), exact)

    def point(self, s: Array, extended: PyTree, reached: Array, known: ScaledGradient | None = None) -> Point:
        state, w, log_arc_length = self.unpack(s, extended)
        scaled, log_norm, _, log_speed = self.rates(s, state, known)
        if not self.coordinates.stretched:
            # Here -inf where the gradient is zero: a point records it, where the field takes a finite number.
            log_norm = scaled.log_norm - scaled.log_scale
        _, _, beyond = self.scale(s)
        model = self.model(state, beyond)
        moving = self.risk.filter(model)
        log_scale = scaled.log_scale * jnp.exp(self.degree * beyond)
        log_time = self.log_time(s, w, scaled.log_scale, log_speed)
        # log t of the limiting dynamics overflows soon; its logarithm does not.
        far = jnp.log(jnp.maximum(-scaled.log_scale, jnp.finfo(s.dtype).tiny)) + self.degree * beyond
        return Point(
            model=model,
            log_time=log_time,
            log_log_time=jnp.where(beyond > 0, far, jnp.log(jnp.maximum(log_time, 0.0))),
            log_arc_length=log_arc_length,
            log_norm=jnp.log(tree_norm(eqx.filter(model, moving))) + beyond,
            log_scale=log_scale,
            log_gradient_norm=log_scale + log_norm + (self.degree - 1) * beyond,
            velocity=eqx.filter(self.coordinates.velocity(self.context, state, scaled), moving),
            multipliers=scaled.multipliers,
            reached=reached,
        )

    def points(self, s: Array, extended: PyTree) -> Point:
        """Saved points; those that were not reached have an infinite s."""
        # A model may hold functions too (activations), which have no batch axis.
        return eqx.filter_vmap(lambda s, y: self.point(s, y, jnp.isfinite(s)))(s, extended)

    def trajectory(
        self,
        s: Array,
        extended: PyTree,
        saved: Any,
        result: Any,
        stats: dict[str, Any],
        known: ScaledGradient | None = None,
    ) -> Trajectory:
        """The result of an integration that ended at s, with `saved` readings and states or None, and the gradient at
        the end where the solver knows it better."""
        final = self.point(s, extended, jnp.asarray(True), known)
        points = None if saved is None else self.points(*saved)
        if self.risk.opaque:
            result = RESULTS.where(underflown(final.log_gradient_norm), RESULTS.gradient_underflow, result)
        _, _, beyond = self.scale(s)
        regime = jnp.where(beyond > 0, Regime.limiting.value, Regime.exact.value)
        return Trajectory(final, points, Code(regime, Regime), result, stats)

    def stops(
        self,
        stop: AbstractStop | None,
        s: Array,
        extended: PyTree,
        known: ScaledGradient | None = None,
        certifies: Callable[[Any], Array] = _nobody_certifies,
        stiff_steps: Array | int = 0,
    ) -> Array:
        """Whether the rule, or an opaque gradient that has underflown, ends the path here."""
        if stop is None and not self.risk.opaque:
            return jnp.asarray(False)
        state, w, log_arc_length = self.unpack(s, extended)
        scaled, log_norm, log_sum, log_speed = self.rates(s, state, known)
        _, _, beyond = self.scale(s)

        def reach() -> Array:
            # Of the weights: those of some coordinates start at zero.
            model = self.model(state, beyond)
            return safe_log(tree_norm(eqx.filter(model, self.risk.filter(model)))) + beyond - log_arc_length

        situation = Situation(
            risk=self.risk,
            log_time=self.log_time(s, w, scaled.log_scale, log_speed),
            log_arc_length=log_arc_length,
            scaled=eqx.tree_at(lambda g: g.log_scale, scaled, scaled.log_scale * jnp.exp(self.degree * beyond)),
            # Rules compare these, and differentiate nothing.
            log_norm=jnp.where(log_norm > LOG_ZERO, log_norm, -jnp.inf),
            log_sum=jnp.where(log_sum > LOG_ZERO, log_sum, -jnp.inf),
            decode=lambda: self.model(state, beyond),
            decode_velocity=lambda: self.coordinates.velocity(self.context, state, scaled),
            attention=lambda: self.coordinates.attention(self.context, state, self.risk.data),
            drift=lambda: self.turning(s, scaled.gradient, extended[0]),
            certifies=certifies,
            log_size=lambda: safe_log(tree_norm(state)),
            log_reach=reach,
            growth=lambda: self.coordinates.growth(self.context, state, scaled.gradient),
            stiff_steps=jnp.asarray(stiff_steps),
        )
        fired = jnp.asarray(False) if stop is None else stop(situation)
        return fired | underflown(situation.scaled.log_norm) if self.risk.opaque else fired


def system_of(terms: Any, solver: str) -> System:
    """The system whose field the terms are. **Raises:** `ValueError` naming the solver for another field."""
    # `diffeqsolve` wraps the term that it is given.
    term = getattr(terms, "term", terms)
    system = getattr(getattr(term, "vector_field", None), "__self__", None)
    if not isinstance(system, System):
        raise ValueError(f"solver: {solver} belongs to `integrate` and to `Drive`")
    return system


def make_system(
    clock: AbstractClock, coordinates: AbstractCoordinates, risk: EmpiricalRisk, model: Any
) -> tuple[System, PyTree]:
    """The system and the initial coordinates. **Raises:** `ValueError` where limiting dynamics make no sense."""
    degree: Any = 1
    if not clock.is_exact():
        why = f"a cap is one of lengths of the weights, which are not those of {type(coordinates).__name__}"
        require(not coordinates.stretched, "clock", why)
        degree = getattr(model, "degree", None)
        homogeneous = isinstance(degree, int) and risk.filter(model) == default_trainable(model)
        require(homogeneous, "clock", "a cap needs a model homogeneous in its trainable parameters (with a `degree`)")
    state, context = coordinates.encode(risk, model)
    return System(risk, clock, coordinates, context, degree), state


def underflown(log_gradient_norm: Array) -> Array:
    """Below the smallest normal number: what is left of the gradient is rounding."""
    return log_gradient_norm < jnp.log(jnp.finfo(log_gradient_norm.dtype).tiny)


def _log_expm1(u: Array) -> Array:
    # What no controller watches may come out below zero.
    u = jnp.maximum(u, 0.0)
    return u + jnp.log(-jnp.expm1(-u))
