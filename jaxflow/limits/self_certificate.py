"""The flow certifies its own limit: its gradient weights are a dual point, its velocity a primal one."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, PyTree

from jaxflow._core import ScaledGradient, checked, positive_or_one, tree_where
from jaxflow._core.linalg import ROUNDED
from jaxflow.flow import SelectionSettled
from jaxflow.margin import AbstractProgram, AttentionProgram, Certificate, Lp, certify
from jaxflow.models import AbstractAttention, AbstractLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import predict, primal_map

# Attention has settled when nothing lies between this, the square of the selected tokens' share, and that share.
MASKED_ATTENTION = SelectionSettled.tolerance**2


def select(attention: Float[Array, "*n T"]) -> Bool[Array, "*n T"]:
    """The selected tokens of each query: all that receive more than 0.1% of its attention. Saturation goes on
    exponentially, so that only tokens whose share tends to a constant stay above it."""
    return attention > SelectionSettled.tolerance


def settled(attention: Float[Array, "*n T"], visible: Bool[Array, "*n T"] | None = None) -> Bool[Array, ""]:
    """Whether every visible token (all, if None) is clearly selected or clearly masked, and some token is masked."""
    masked = attention < MASKED_ATTENTION
    return jnp.all(masked | select(attention)) & jnp.any(masked if visible is None else masked & visible)


def combined_velocity(model: AbstractAttention, velocity: PyTree) -> Float[Array, "..."]:
    r"""$\dot W$ for a velocity of the parameters, for factors $\dot KQ^\top+K\dot Q^\top$."""
    return eqx.filter_jvp(lambda m: m.combined_weights(), (model,), (velocity,))[1]


def as_primal(program: AbstractProgram, weights: Inexact[Array, "..."]) -> Inexact[Array, "..."]:
    """Weights in the program's primal shape: the diagonal of combined ones for programs on diagonal weights."""
    return jnp.diagonal(weights) if program.primal_zero.ndim < weights.ndim else weights


def dual_weights(program: AttentionProgram, multipliers: Float[Array, "*n T"]) -> Float[Array, "*n T"]:
    r"""$\lambda_{it}=\max(p_{it},0)$ for masked tokens: the push of the gradient from t to the selected token.

    $p_{it}=\partial L/\partial a_{it}>0$ lowers the logit of t. A token with a higher score than the selected
    one has the wrong sign and counts zero. Equalities among selected tokens take their push with its sign.
    """
    return jnp.where(program.active, jnp.maximum(multipliers, 0.0), -multipliers)


def flow_bounds(
    program: AttentionProgram, model: AbstractAttention, velocity: PyTree, multipliers: Float[Array, "*n T"]
) -> tuple[Certificate, Float[Array, "2 ..."]]:
    r"""The flow's certificates, no solver involved, of two primal points: the velocity $\dot W$ and the weights W.

    **Returns:** both certificates, stacked, with one lower bound; and both directions, of any size. A direction with
    entries off the diagonal has no value in a program on diagonal weights.
    """
    dual = dual_weights(program, multipliers)
    directions = jnp.stack([combined_velocity(model, velocity), model.combined_weights()])
    certificates = jax.vmap(lambda weights: certify(program, as_primal(program, weights), dual, "flow"))(directions)
    if program.primal_zero.ndim == 1 and directions.ndim == 3:
        off = jnp.abs(jnp.where(jnp.eye(directions.shape[-1], dtype=bool), 0.0, directions))
        diagonal = jnp.max(off, axis=(1, 2)) <= ROUNDED * jnp.max(jnp.abs(directions), axis=(1, 2))
        certificates = jax.vmap(tree_where, (0, 0, None))(diagonal, certificates, Certificate.none())
    return certificates, directions


@checked()
def flow_certificate(
    program: AttentionProgram, model: AbstractAttention, velocity: PyTree, multipliers: Float[Array, "*n T"]
) -> tuple[Certificate, Float[Array, "..."]]:
    r"""The flow's certificate, no solver involved, and the direction $V/\mu$ that it certifies.

    The primal point is the velocity $\dot W$ or the weights W, whichever has the smaller value: with W the gap falls
    like a power of $\|W\|$, with the velocity of the combined parametrisation exponentially.

    **Example:**

    ```python
    end = limit.trajectory.final
    program = jf.margin.attention_svm(data, limit.selection)
    certificate, direction = jf.limits.flow_certificate(program, end.model, end.velocity, end.multipliers)
    ```
    """
    return better_of(program, *flow_bounds(program, model, velocity, multipliers))


def better_of(
    program: AbstractProgram, certificates: Certificate, directions: Inexact[Array, "2 ..."]
) -> tuple[Certificate, Inexact[Array, "..."]]:
    """Of two stacked certificates the one with the smaller primal value, and its direction at margin one."""
    best = jnp.argmin(certificates.primal_value)
    certificate = jax.tree.map(lambda x: x[best], certificates)
    direction = directions[best]
    margin = jnp.min(program.margins(as_primal(program, direction)))
    positive = (margin > 0) & jnp.isfinite(margin)
    return certificate, direction / jnp.where(positive, margin, 1.0)


def network_bounds(
    program: Any, read: Any, model: Any, velocity: PyTree, multipliers: Any
) -> tuple[Certificate, Inexact[Array, "2 m"]]:
    r"""`flow_bounds` for linear networks: of the velocity of ρ (see `jaxflow.theory.primal_map`) and of ρ, the largest
    entries one; of ρ alone, twice, where the program is not convex."""
    primal, moving = eqx.filter_jvp(read, (model,), (velocity,))
    convex = not isinstance(program.norm, Lp) or program.norm.convex
    directions = jnp.stack([moving if convex else primal, primal])
    directions = directions / positive_or_one(jnp.max(jnp.abs(directions), axis=1, keepdims=True))
    dual = jnp.abs(multipliers)
    return jax.vmap(lambda rho: certify(program, rho, dual, "flow"))(directions), directions


def network_certificate(
    risk: EmpiricalRisk, model: Any, velocity: PyTree, multipliers: Any
) -> tuple[Certificate, Inexact[Array, " m"]]:
    """The better of these certificates, and its point at margin one. **Raises:** `ValueError` where no theorem names a
    program."""
    program, read = predict(risk, model).program, primal_map(risk, model)
    return better_of(program, *network_bounds(program, read, model, velocity, multipliers))


def flow_certifier() -> Callable[[EmpiricalRisk, Any, PyTree, ScaledGradient], Certificate]:
    """What `CertificateGap` evaluates after every step: the certificate for the tokens that attention currently
    selects; of a linear network under a margin loss, its own."""

    def certifier(risk: EmpiricalRisk, model: Any, velocity: PyTree, scaled: ScaledGradient) -> Certificate:
        if isinstance(model, AbstractLinearNetwork):
            return network_certificate(risk, model, velocity, scaled.multipliers)[0]
        data: Any = risk.data
        attention = model.attention(data)
        program: Any = predict(risk, model, select(attention)).program
        moving = eqx.filter(velocity, risk.filter(model))
        certificate, _ = flow_certificate(program, model, moving, scaled.multipliers)  # pyright: ignore
        return valid_if(settled(attention, data.visible), certificate)

    return certifier


def valid_if(condition: Bool[Array, ""], certificate: Certificate) -> Certificate:
    """The certificate where `condition` holds and it is feasible; elsewhere `Certificate.none()`.

    Equalities among several selected tokens hold only in the limit; their violation must be small for the
    bounds to mean anything (1e-6: the share of attention that masked tokens may still have).
    """
    return tree_where(condition & (certificate.feasibility <= MASKED_ATTENTION), certificate, Certificate.none())
