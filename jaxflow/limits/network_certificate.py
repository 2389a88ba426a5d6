"""The flow's own certificate for linear networks: its direction and its multipliers, and no solver."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, PyTree

from jaxflow._core import ScaledGradient, positive_or_one
from jaxflow.limits.self_certificate import better_of
from jaxflow.margin import Certificate, Lp, certify
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import predict, primal_map


def network_bounds(
    program: Any, read: Any, model: Any, velocity: PyTree, multipliers: Any
) -> tuple[Certificate, Inexact[Array, "2 m"]]:
    r"""The flow's certificates of two primal points, stacked, with one lower bound; and both points, of any size.

    They are the velocity of ρ (see `jaxflow.theory.primal_map`) and ρ; ρ alone, twice, where the program is not convex.
    """
    primal, moving = eqx.filter_jvp(read, (model,), (velocity,))
    candidates = jnp.stack([_unit(primal if isinstance(program.norm, Lp) else moving), _unit(primal)])
    dual = jnp.abs(multipliers)
    return jax.vmap(lambda rho: certify(program, rho, dual, "flow"))(candidates), candidates


def network_certificate(
    risk: EmpiricalRisk, model: Any, velocity: PyTree, multipliers: Any
) -> tuple[Certificate, Inexact[Array, " m"]]:
    """The better of these certificates, and its point at margin one. **Raises:** `ValueError` where no theorem names a
    program."""
    program, read = predict(risk, model).program, primal_map(risk, model)
    return better_of(program, *network_bounds(program, read, model, velocity, multipliers))


def network_certifier() -> Callable[[EmpiricalRisk, Any, PyTree, ScaledGradient], Certificate]:
    """What `CertificateGap` evaluates after every step of a linear network under a margin loss."""

    def certifier(risk: EmpiricalRisk, model: Any, velocity: PyTree, scaled: ScaledGradient) -> Certificate:
        return network_certificate(risk, model, velocity, scaled.multipliers)[0]

    return certifier


def _unit(x: Array) -> Array:
    size = jnp.max(jnp.abs(x))
    return x / positive_or_one(size)
