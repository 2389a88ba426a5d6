"""Stopping rules: values that compose with `|` and `&`, evaluated after every step."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import ScaledGradient, check_kind, checked
from jaxflow.flow.constraints import leading
from jaxflow.margin import Certificate
from jaxflow.risk import EmpiricalRisk


class Situation(eqx.Module):
    """The quantities of a stopping rule. The model is decoded only where a rule uses it."""

    risk: EmpiricalRisk
    log_time: Float[Array, ""]
    log_arc_length: Float[Array, ""]
    scaled: ScaledGradient
    log_norm: Float[Array, ""]
    log_sum: Float[Array, ""]
    decode: Callable[[], Any]
    decode_velocity: Callable[[], Any]
    attention: Callable[[], Any]
    drift: Callable[[], Any]
    certifies: Callable[[Any], Any]
    log_size: Callable[[], Any]
    log_reach: Callable[[], Any]
    growth: Callable[[], Any]
    stiff_steps: Int[Array, ""]


class AbstractStop(eqx.Module):
    """A rule that ends an integration."""

    @abc.abstractmethod
    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        """True to stop here."""

    def __or__(self, other: Any) -> "Joined":
        return Joined((self, check_kind("rule", other, AbstractStop, "a stopping rule")), together=False)

    def __and__(self, other: Any) -> "Joined":
        return Joined((self, check_kind("rule", other, AbstractStop, "a stopping rule")), together=True)


class Joined(AbstractStop):
    """Stops when one of the rules does, or when all of them do."""

    rules: tuple[AbstractStop, ...]
    together: bool = eqx.field(static=True)

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        fired = jnp.stack([rule(situation) for rule in self.rules])
        return jnp.all(fired) if self.together else jnp.any(fired)


@checked(positive=["gap"])
class CertificateGap(AbstractStop):
    r"""Stops when the flow certifies its direction to a relative duality gap.

    **Arguments:** `gap`; `certify`: `(risk, model, velocity, scaled) -> Certificate`, such as
    `jaxflow.limits.flow_certifier`, which knows the program that the limit solves.

    **Example:**

    ```python
    jf.integrate(risk, model, clock="log_time", until=9.0, stop=jf.CertificateGap(0.5, jf.limits.flow_certifier()))
    ```
    """

    gap: float | Float[Array, ""]
    certify: Callable[[EmpiricalRisk, Any, Any, ScaledGradient], Certificate]

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        certificate = self.certify(situation.risk, situation.decode(), situation.decode_velocity(), situation.scaled)
        return certificate.duality_gap <= self.gap


@checked(positive=["tolerance"], most={"tolerance": 1.0}, nonnegative=["pull"])
class SelectionSettled(AbstractStop):
    r"""Stops when attention has settled on one token per query, and the pull of the others is small.

    In every query the top token and its copies have at least `1 - tolerance` of the attention. Of $\sum|p_{it}|$ over
    the other tokens, at most the share `pull` (by default `tolerance`) pulls away from the top one. (Definition 2 of
    Tarzanagh et al. (2023) is a condition on the support tokens of the program, which is decided later.)

    **Example:**

    ```python
    jf.integrate(risk, model, clock="arc_length", until=60.0, stop=jf.SelectionSettled())
    ```
    """

    tolerance: float | Float[Array, ""] = 1e-3
    pull: float | Float[Array, ""] | None = None

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        top, share = leading(situation.attention(), situation.risk.data)
        multipliers: Any = situation.scaled.multipliers
        pull = jnp.where(top, 0.0, multipliers)
        away = jnp.sum(jnp.maximum(-pull, 0.0))
        most = self.tolerance if self.pull is None else self.pull
        return jnp.all(share >= 1.0 - self.tolerance) & (away <= most * jnp.sum(jnp.abs(pull)))


@checked(positive=["share"], most={"share": 1.0})
class Unsaturated(AbstractStop):
    """Stops where in some query the top token and its copies have less than `share` of the attention, so that the flow
    leaves its selection.
    """

    share: float = 0.99

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        return jnp.any(leading(situation.attention(), situation.risk.data)[1] < self.share)


@checked(positive=["gap"])
class SelfCertified(AbstractStop):
    """Stops when the flow certifies its own direction to a relative duality gap (`MultiplierNewton.certifies`)."""

    gap: float | Float[Array, ""]

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        return situation.certifies(self.gap)


# How much faster than the whole something may grow at rest: slower than this it is not told from what does not.
GROWTH = 1e-4


@checked(positive=["tolerance"])
class AtRest(AbstractStop):
    r"""Stops where the direction no longer turns: $\|V-x/\|x\|\|\le\text{tolerance}$ with the unit velocity V.

    In log arc length $\|x\|^{-1}x$ moves at this rate. A component with slack c has the share rate/c; at a rate of
    1e-13, a thousand roundings, no visible component is left for any c above 1e-6.

    Of weights that are two vectors (`has_pairs`), a sum or difference of entries that is not zero and grows faster than
    the whole changes the direction later, however small it still is. Such a point is a saddle, and the rule does not
    stop there.
    """

    tolerance: float = 1e-13

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        whole = jnp.exp(situation.log_norm - situation.log_size())
        return (situation.drift() <= self.tolerance) & (situation.growth() <= (1.0 + GROWTH) * whole)


@checked(positive=["tolerance"], least={"degree": 1})
class StationaryPoint(AbstractStop):
    r"""Stops where the gradient vanishes by cancellation: $\|\nabla L\|\le\text{tolerance}\cdot\sum_k|p_k|$.

    Saturation shrinks both sides alike (the ratio then tends to the margin of the limit, of order one), so this rule
    stops at finite stationary points only. 1e-10 is a hundred thousand rounding errors.

    For a model homogeneous of degree L the ratio is of the order of $\|\theta\|^{L-1}$ wherever nothing cancels; with
    `degree` L weights below one are not taken for a stationary point because they are small. Of pairs (see `AtRest`) a
    point from which some entry still moves away, at more than `tolerance` of $\sum_k|p_k|$, is a saddle, and the rule
    does not stop there.

    **Example:**

    ```python
    jf.integrate(risk, model, clock="log_time", until=2.0, stop=jf.StationaryPoint())
    ```
    """

    tolerance: float = 1e-10
    degree: int = 1

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        least = jnp.log(self.tolerance)
        if self.degree > 1:
            least = least + (self.degree - 1) * jnp.minimum(situation.log_size(), 0.0)
        rests = situation.log_norm <= situation.log_sum + least
        return rests & (situation.growth() <= self.tolerance * jnp.exp(situation.log_sum))


@checked(positive=["share"], most={"share": 1.0})
class Returned(AbstractStop):
    r"""Stops where weights are shorter than `share` of the path: it has come back from far out, where a logarithm of
    its length no longer tells what happens within the length of the weights.
    """

    share: float = 0.1

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        return situation.log_reach() < jnp.log(self.share)


@checked()
class LossExcess(AbstractStop):
    r"""Stops when $\log\sum_k|p_k|$, the loss excess up to a factor of order one, is at most `log_excess`.

    **Example:**

    ```python
    jf.integrate(risk, model, clock="log_time", until=9.0, stop=jf.LossExcess(-1.5))
    ```
    """

    log_excess: float | Float[Array, ""]

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        return situation.scaled.log_scale + situation.log_sum <= self.log_excess


@checked(infinite=["log_time", "log_arc_length"])
class Budget(AbstractStop):
    """Stops at a log time or a log arc length, in every clock.

    **Example:**

    ```python
    path = jf.integrate(risk, model, clock="arc_length", until=50.0, stop=jf.Budget(log_time=1.0))
    assert path.log_time >= 1.0
    ```
    """

    log_time: float | Float[Array, ""] = jnp.inf
    log_arc_length: float | Float[Array, ""] = jnp.inf

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        return (situation.log_time >= self.log_time) | (situation.log_arc_length >= self.log_arc_length)


@checked(least={"steps": 1})
class Stiff(AbstractStop):
    """Stops an explicit method whose steps are as long as stability allows, and have been for some accepted steps in a
    row (15 of them are Hairer and Wanner's choice for Dopri5, *Solving ODEs II*, IV.2). Never stops another method.
    """

    steps: int = 15

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        return situation.stiff_steps >= self.steps
