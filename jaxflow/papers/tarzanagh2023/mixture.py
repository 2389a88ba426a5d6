r"""The flow of W where attention settles on a mixture of orthonormal tokens, to any log t.

In $s=\log t$ a mixture's proportions are pulled to their limit at rates of order t, while all tokens outside go
on moving at rates of order one. In coordinates that mix the two, the rounding error of the fast rates, $10^{-16}t$,
ends up in the slow ones: measured, no implicit method passes $\log t = 25$. Apart from each other both are exact.
"""

from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax.numpy as jnp
import optimistix
from jaxtyping import Array, Bool, Float, PyTree

from jaxflow._core import ScaledGradient, linalg
from jaxflow.data import TokenData
from jaxflow.flow import AbstractCoordinates, AbstractStop, Situation, integrate
from jaxflow.models import AbstractAttention, CombinedAttention, Head
from jaxflow.models.base import mark_trainable
from jaxflow.risk import EmpiricalRisk


class LogitAttention(AbstractAttention):
    r"""Attention given by its logits, $W = W_0+\sum_t(a_t-a_{0t})\,x_tz^\top$ for orthonormal tokens and unit z."""

    values: Float[Array, "n T"]
    initial: CombinedAttention
    head: Head
    degree: ClassVar[int] = 1

    def logits(self, data: TokenData) -> Float[Array, "n T"]:
        return self.values

    def combined_weights(self) -> Float[Array, "d d"]:
        return self.initial.W

    def trainable(self) -> PyTree:
        return mark_trainable(self, ("values",))

    def check(self, data: TokenData) -> None:
        self.initial.check(data)


class Mixture(AbstractCoordinates):
    r"""For one sequence of orthonormal tokens with a unit query: $\dot a=-p$ with $p=\partial L/\partial a$, split.

    The state has, for a set O of k tokens, what their logits moved apart (their mean removed), what the other
    logits moved, and $\sqrt k$ times how far the mean of O moved: together orthonormal. As $\sum_tp_t=0$ the last
    follows from the tokens outside, which decay, and not from a mean of terms that cancel.

    O = `inside` is where proportions settle. Any O gives the same path; another one gives larger rounding errors.
    """

    inside: Bool[Array, " T"]

    def encode(self, risk: EmpiricalRisk, model: Any) -> tuple[PyTree, PyTree]:
        data = risk.data
        if not isinstance(model, CombinedAttention) or not isinstance(data, TokenData) or data.tokens.shape[0] != 1:
            raise ValueError("coordinates: a Mixture needs CombinedAttention on one sequence of tokens")
        proxy = LogitAttention(values=model.logits(data), initial=model, head=model.head)
        zeros = jnp.zeros_like(proxy.values[0])
        return (zeros, jnp.zeros((), zeros.dtype)), (proxy, EmpiricalRisk(risk.source, risk.loss, None, risk.reduction))

    def moved(self, state: PyTree) -> Float[Array, " T"]:
        r"""$a-a_0$. Rounding may give the apart part a mean, which is no motion."""
        apart, mean = state
        size = jnp.sum(self.inside)
        centre = jnp.sum(jnp.where(self.inside, apart, 0.0)) / size
        return apart + jnp.where(self.inside, mean / jnp.sqrt(size) - centre, 0.0)

    def decode(self, context: PyTree, state: PyTree) -> Any:
        proxy, risk = context
        weights = proxy.initial.W + jnp.outer(self.moved(state) @ risk.data.tokens[0], risk.data.queries[0])
        return eqx.tree_at(lambda m: m.W, proxy.initial, weights)

    def field(self, context: PyTree, state: PyTree) -> ScaledGradient:
        proxy, risk = context
        scaled = risk.scaled_gradient(eqx.tree_at(lambda m: m.values, proxy, proxy.values + self.moved(state)[None]))
        rates = scaled.gradient.values[0]
        size = jnp.sum(self.inside)
        outside = jnp.sum(jnp.where(self.inside, 0.0, rates))
        # The mean of the apart part is rounding, which adds up and makes Newton's matrix singular to rounding: it is
        # pulled to zero as fast as proportions are.
        centre = jnp.sum(jnp.where(self.inside, rates - state[0], 0.0)) / size
        apart = rates - jnp.where(self.inside, centre, 0.0)
        return ScaledGradient(scaled.log_scale, (apart, -outside / jnp.sqrt(size)), scaled.multipliers)


class ByIncrements(optimistix.AbstractRootFinder):
    """Newton's method that ends by the size of its increments alone.

    Residuals of rates of order t are rounding errors of order 1e-16 t, and would pass no test; nor do increments
    at the level of rounding go on shrinking, which the test of their ratio takes for divergence.
    """

    rtol: float
    atol: float
    norm: Any = optimistix.max_norm

    @property
    def newton(self) -> optimistix.Newton:
        return optimistix.Newton(self.rtol, self.atol, self.norm, linear_solver=linalg.LU(), cauchy_termination=False)

    def init(self, fn: Any, y: Any, args: Any, options: Any, f_struct: Any, aux_struct: Any, tags: Any) -> Any:
        return self.newton.init(fn, y, args, options, f_struct, aux_struct, tags)

    def step(self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: Any) -> Any:
        return self.newton.step(fn, y, args, options, state, tags)

    def terminate(self, fn: Any, y: Any, args: Any, options: Any, state: Any, tags: Any) -> Any:
        solved = state.result == optimistix.RESULTS.successful
        return ~solved | (state.diffsize < 1.0), state.result

    def postprocess(
        self, fn: Any, y: Any, aux: Any, args: Any, options: Any, state: Any, tags: Any, result: Any
    ) -> Any:
        return y, aux, {}


class Near(AbstractStop):
    """Stops where attention is within `distance` of `target` `(T,)`, in every entry."""

    target: Float[Array, " T"]
    distance: float

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        model, data = situation.decode(), situation.risk.data
        if not isinstance(model, AbstractAttention) or not isinstance(data, TokenData):
            raise ValueError("stop: Near needs an attention model on TokenData")
        return jnp.max(jnp.abs(model.attention(data)[0] - self.target)) <= self.distance


def follow_mixture(risk: EmpiricalRisk, model: Any, inside: Any, longest: float | None = None, **how: Any) -> Any:
    """`integrate` by implicit steps to a hundred-thousandth of the path, at most `longest`: its end is what matters."""
    controller = diffrax.PIDController(rtol=1e-5, atol=1e-7, pcoeff=0.3, icoeff=0.4, dtmax=longest)
    solver = diffrax.Kvaerno5(root_finder=ByIncrements(rtol=1e-6, atol=1e-8))
    how |= {"coordinates": Mixture(inside), "solver": solver, "controller": controller}
    return integrate(risk, model, throw=False, **how)
