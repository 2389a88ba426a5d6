r"""The hypotheses of Yun, Krishnan, Mobahi (2021) as checks that return their slack, and Theorem 1's residual."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import checked, linalg, positive_or_one, require
from jaxflow.data import LinearData
from jaxflow.models import AbstractLinearNetwork, DeepLinearNetwork
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory.prediction import Assumption


@checked()
def layer_gap(etas: tuple[Array, ...]) -> Float[Array, ""]:
    r"""λ of Theorem 2: $\max_{l_0}\min_{l\ne l_0,j}|[U_l^\top v_l]_j|^2-|[U_{l_0}^\top v_{l_0}]_j|^2$.

    Any layer may be the small one (Remark 2). With the scale in $v_l$, this is $\alpha^2\lambda$.
    """
    require(len(etas) >= 2, "etas", f"expected at least two layers, got {len(etas)}")
    sizes = jnp.stack([jnp.abs(eta) ** 2 for eta in etas])
    gaps = sizes[:, None] - sizes[None, :]
    same = jnp.eye(len(etas), dtype=bool)[:, :, None]
    return jnp.max(jnp.min(jnp.where(same, jnp.inf, gaps), axis=(0, 2)))


@checked()
def small_layer(etas: tuple[Array, ...], theorem: str = "Theorem 2") -> Assumption:
    """Theorem 2's initial condition; the slack is α²λ."""
    gap = layer_gap(etas)
    return Assumption(f"one layer is smaller than the others in every component ({theorem})", gap > 0, gap)


@checked()
def equal_layers(etas: tuple[Array, ...]) -> Assumption:
    r"""Theorem 4's start, $\eta_1=\dots=\eta_{L-1}$ up to signs and $\eta_L=0$, no entry zero; slack of 1e-10."""
    require(len(etas) >= 2, "etas", f"expected at least two layers, got {len(etas)}")
    *first, last = etas
    size = jnp.abs(first[0])
    off = [jnp.max(jnp.abs(jnp.abs(eta) - size)) for eta in first] + [jnp.max(jnp.abs(last))]
    slack = 1e-10 - jnp.max(jnp.stack(off)) / jnp.max(size)
    slack = jnp.where(jnp.min(size) > 0, slack, -1.0)
    return Assumption("the first layers are equal, without zeros, and the last is zero (Theorem 4)", slack > 0, slack)


@checked()
def fully_connected_start(network: DeepLinearNetwork) -> tuple[Assumption, Assumption]:
    r"""Theorem 6.1: least eigenvalues of $W_l^\top W_l-W_{l+1}W_{l+1}^\top$ (≥ 0), the last of them positive.

    The first may vanish: it holds down to −1e-12 of the layers' size, which is rounding.
    """
    gaps = network.conserved()
    size = jnp.sum(network.layers[0] ** 2)
    inner = [linalg.eigvalsh(gap)[0] for gap in gaps[:-1]]
    least = jnp.min(jnp.stack(inner)) if inner else jnp.asarray(jnp.inf)
    last = linalg.eigvalsh(gaps[-1])[0]
    return (
        Assumption("W_l^T W_l >= W_{l+1} W_{l+1}^T for l <= L − 2 (Theorem 6.1)", least >= -1e-12 * size, least),
        Assumption("W_{L-1}^T W_{L-1} − w_L w_L^T >= λ I with λ > 0 (Theorem 6.1)", last > 0, last),
    )


@checked()
def below_one(risk: EmpiricalRisk, network: AbstractLinearNetwork) -> Assumption:
    r"""$\mathcal L(\Theta)<1$ for the summed loss, after which parameters converge in direction (Theorem 1)."""
    value = jnp.sum(risk.losses(network))
    return Assumption("the summed loss has fallen below one (Theorem 1, Corollary 1)", value < 1.0, 1.0 - value)


@checked()
def push_direction(inputs: Float[Array, "n d"], multipliers: Float[Array, " n"]) -> Float[Array, " d"]:
    r"""The unit vector of $X^\top r$, from multipliers on any positive scale."""
    push = inputs.T @ multipliers
    size = jnp.linalg.norm(push)
    return push / positive_or_one(size)


@checked()
def singular_residual(
    network: AbstractLinearNetwork, data: LinearData, multipliers: Float[Array, " n"]
) -> Float[Array, ""]:
    r"""Theorem 1: how far the layers' directions are from singular vectors of $\mathsf M(-u)$.

    $u=X^\top r/\|X^\top r\|$. With unit layers $\hat v_l$ and $s=\mathsf M(-u)\circ(\hat v_1,\dots,\hat v_L)$, the
    largest $\|\mathsf M(-u)\circ(\hat v_1,\dots,I,\dots,\hat v_L)-s\hat v_l\|/|s|$ of (8). The tensor is not built: its
    contractions are derivatives of $-u^\top\beta(\Theta)$.
    """
    u = push_direction(data.inputs, multipliers)
    unit = jax.tree.map(lambda v: v / jnp.sqrt(jnp.sum(v**2)), network.layers)

    def value(layers: Any) -> Array:
        return -u @ with_layers(network, layers).linear_coefficients()

    s, slopes = jax.value_and_grad(value)(unit)
    off = [jnp.sqrt(jnp.sum((slope - s * v) ** 2)) for slope, v in zip(slopes, unit, strict=True)]
    return jnp.max(jnp.stack(off)) / jnp.abs(s)


def with_layers(network: Any, layers: Any) -> Any:
    """The network with other layers."""
    return eqx.tree_at(lambda n: n.weights, network, tuple(layers))
