"""Models of a user's own, as plain callables, and the conditions at which networks of two layers end."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


class Linear(eqx.Module):
    """Linear in its parameters."""

    w: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.w @ x

    def linear_coefficients(self) -> jax.Array:
        return self.w


class Products(eqx.Module):
    """Of degree two in its parameters and flat at zero; linear in its input."""

    u: jax.Array
    v: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return (self.u * self.v) @ x


class Matrix(eqx.Module):
    """Linear in its parameters, on inputs that are matrices."""

    W: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.sum(self.W * x)


class TwoLayers(eqx.Module):
    """A ReLU network as a plain callable, with one output or one for each class."""

    W: jax.Array
    A: jax.Array

    def __call__(self, x):
        return self.A @ jax.nn.relu(self.W @ x)


class Saturating(eqx.Module):
    """Four sigmoids."""

    W: jax.Array
    a: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.a @ jax.nn.sigmoid(self.W @ jnp.append(x, 1.0))


def kkt_residual_of(inputs: Any, signs: np.ndarray, limit: Any) -> float:
    """The conditions of Lyu and Li (2020) hold, put together in NumPy from the answer's numbers alone; by how much they
    are missed. Margins are `signs` `(n, k, outputs)` times the outputs."""
    x, direction = np.asarray(inputs), limit.flow_direction.module
    W, A = np.asarray(direction.W), np.atleast_2d(np.asarray(direction.A))
    np.testing.assert_allclose(np.sum(W**2) + np.sum(A**2), 1.0, rtol=1e-12)
    margins = np.einsum("ikc,ic->ik", signs, np.maximum(x @ W.T, 0.0) @ A.T)
    np.testing.assert_allclose(margins.min(), limit.margin, rtol=1e-10)
    # To the smallest margin one.
    W, A = (margins.min() ** -0.5 * part for part in (W, A))
    z, lam = x @ W.T, np.asarray(limit.kkt.multipliers).reshape(margins.shape)
    # In the order in which the mapped network computes them.
    gates = np.asarray(limit.kkt.gates).reshape(z.T.shape).T
    # Gates are those of the point: one and zero away from kinks, any share on them. A unit that has faded out is on all
    # of its kinks: 1e-9 of the largest switch is what a solve leaves (`flow.hard_margin_step`, `CONSISTENT`).
    near = 1e-9 * np.abs(z).max()
    assert np.all((gates == 1.0)[z > near]) and np.all((gates == 0.0)[z < -near])
    assert np.all((0.0 <= gates) & (gates <= 1.0)) and np.all(lam >= 0.0)
    push = np.einsum("ikc,ik->ic", signs, lam)
    left_A = A - push.T @ np.maximum(z, 0.0)
    left_W = W - np.einsum("ic,cu,iu,id->ud", push, A, gates, x)
    residual = np.sqrt((np.sum(left_W**2) + np.sum(left_A**2)) / (np.sum(W**2) + np.sum(A**2)))
    # 1e-8 is the gap that was asked for. A multiplier belongs to a margin of one.
    assert residual <= 1e-8 and np.all(lam * (margins / margins.min() - 1.0) <= 1e-9 * lam.sum())
    return residual
