"""The hypotheses of Theorem 4.1 of Boix-Adserà et al. (2023), measured on an instance."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from jaxflow._core import checked
from jaxflow.models import HadamardNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Assumption, StageResult, Stages
from jaxflow.theory.incremental_limit import PUSH, limit_from, product_slopes


@checked()
def stage_assumptions(stages: Stages, model: HadamardNetwork) -> tuple[Assumption, ...]:
    r"""Assumptions 4.3 (all three clauses) and 4.4 over the stages that were learned, with their slack.

    Assumption 2.1 (smooth loss, bounded data) is met by every finite sample and every loss here whose derivative
    is continuous; Assumption 4.5 is measured by `return_distances`.

    **Arguments:** `stages` of `model`, whose weights at the start are looked at.
    """
    logs = model.log_weights
    # (u - v)/(u + v) or its inverse, whichever is smaller: zero where |u| = |v|.
    balance = jnp.min(jnp.exp(-jnp.abs(logs.log_sum - logs.log_difference)))
    learned = stages.results == StageResult.learned
    tied = jnp.any(stages.results == StageResult.degenerate)
    gap = jnp.where(tied, 0.0, jnp.min(jnp.where(learned, stages.gaps, jnp.inf)))
    leaving = jnp.min(jnp.where(learned, stages.leaving, jnp.inf))
    curvature = jnp.min(jnp.where(learned, stages.curvatures, jnp.inf))
    return (
        Assumption("|u_i(0)| ≠ |v_i(0)| for all i (Assumption 4.3)", balance > 0, balance),
        Assumption("the smallest waiting time has no equal (Assumption 4.3)", gap > 0, gap),
        Assumption("g_i ≠ 0 where a coordinate has left (Assumption 4.3)", leaving > 0, leaving),
        Assumption("stationary points are strict minima on their support (Assumption 4.4)", curvature > 0, curvature),
    )


@checked(least={"draws": 1}, positive=["noise"])
def return_distances(
    risk: EmpiricalRisk,
    model: HadamardNetwork,
    before: Float[Array, " p"],
    after: Float[Array, " p"],
    *,
    key: Key[Array, ""],
    draws: int = 8,
    noise: float = 0.01,
) -> Float[Array, " draws"]:
    r"""Assumption 4.5 measured: how far from $\theta^{k+1}$ the flow ends that starts at $\theta^k$ perturbed.

    Gaussian noise on $\tilde u$ over $\mathrm{supp}(\theta^k)\cup\{i_k\}$, whose absolute value is taken
    (the assumption asks for $\tilde u\ge0$), with $v=s^{k+1}\odot\tilde u$.

    **Arguments:** `before`, `after`: products at $\theta^k$ and $\theta^{k+1}$ (signs on what left the support are
    those of before); `draws`: perturbations; `noise`: standard deviation.

    **Returns:** $\max_i|a_i-a_i^{k+1}|$ for each; +inf where the flow found no limit.
    """
    slopes = product_slopes(risk, model.h)
    scale = jnp.max(jnp.abs(slopes(jnp.zeros_like(before))))
    on = (before != 0.0) | (after != 0.0)
    sign = jnp.where(after != 0.0, jnp.sign(after), jnp.sign(before))
    u = jnp.sqrt(jnp.abs(before))

    def distance(key: Any) -> Any:
        moved = jnp.abs(u + noise * jax.random.normal(key, u.shape))
        inner = limit_from(slopes, jnp.where(on, sign * jnp.maximum(moved, PUSH) ** 2, 0.0), scale)
        return jnp.where(inner.converged, jnp.max(jnp.abs(inner.products - after)), jnp.inf)

    return lax.map(distance, jax.random.split(key, draws))
