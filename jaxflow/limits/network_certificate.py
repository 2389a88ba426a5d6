"""The flow's own certificate for linear networks: its direction and its multipliers, and no solver."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, PyTree

from jaxflow._core import ScaledGradient
from jaxflow.margin import Certificate, Lp, certify
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import predict, primal_map


def network_certificate(
    risk: EmpiricalRisk, model: Any, velocity: PyTree, multipliers: Any
) -> tuple[Certificate, Inexact[Array, " m"]]:
    r"""The certificate of a linear network's direction by its multipliers, and that direction, of any size.

    Of ρ (see `jaxflow.theory.primal_map`) and its velocity the one with less norm at margin one; ρ alone where the
    program is not convex.

    **Raises:** `ValueError` where no theorem names a program.
    """
    program: Any = predict(risk, model).program
    read: Any = primal_map(risk, model)
    primal, moving = eqx.filter_jvp(read, (model,), (velocity,))
    candidates = jnp.stack([_unit(primal), _unit(primal if isinstance(program.norm, Lp) else moving)])
    certificates = jax.vmap(lambda rho: certify(program, rho, jnp.abs(multipliers), "flow"))(candidates)
    best = jnp.argmin(certificates.duality_gap)
    return jax.tree.map(lambda x: x[best], certificates), candidates[best]


def network_certifier() -> Callable[[EmpiricalRisk, Any, PyTree, ScaledGradient], Certificate]:
    """What `CertificateGap` evaluates after every step of a linear network under a margin loss."""

    def certifier(risk: EmpiricalRisk, model: Any, velocity: PyTree, scaled: ScaledGradient) -> Certificate:
        certificate, _ = network_certificate(risk, model, velocity, scaled.multipliers)
        return certificate

    return certifier


def _unit(x: Array) -> Array:
    size = jnp.max(jnp.abs(x))
    return x / jnp.where(size > 0, size, 1.0)
