"""What several test files hold limits against: solutions by CVXPY, and conditions put together in NumPy."""

import importlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

# Tables, sequences and solutions by other means: those of the benchmark.
next_tokens: Any = importlib.import_module("next_tokens")


def linear(W: Any) -> eqx.nn.Linear:
    """A layer of Equinox with these weights, and no bias."""
    layer = eqx.nn.Linear(W.shape[1], W.shape[0], use_bias=False, key=jax.random.key(0))
    return eqx.tree_at(lambda m: m.weight, layer, jnp.asarray(W))


class Linear(eqx.Module):
    """A linear model as a plain callable."""

    w: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.w @ x


def minimum(inputs: Any, labels: Any, start: Any = 0.0) -> np.ndarray:
    """Of the logistic loss, by Newton's method from a start, with the gradient in extended precision."""
    rows = (labels[:, None] * np.asarray(inputs)).astype(np.longdouble)
    w = np.zeros(rows.shape[1], np.longdouble) + np.asarray(start, np.longdouble)
    for _ in range(30):
        p = 1 / (1 + np.exp(rows @ w))
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows
        w = w + np.linalg.solve(hessian.astype(float), (rows.T @ p).astype(float))
    return w


class TwoLayers(eqx.Module):
    """A ReLU network as a plain callable: `a` `(width,)`, or `(classes, width)` for an output of each class."""

    W: jax.Array
    a: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.a @ jax.nn.relu(self.W @ x)


def relu_residual(x: Any, W: Any, a: Any, push: Any, gates: Any) -> float:
    r"""Of the conditions of Lyu and Li (2020), relative to the size of the weights: what is left of $W$ and $a$ at
    margin one without their gradients times `push` `(n, classes)`. Gates, in the order in which the mapped network
    computes them, are those of the point: one and zero away from kinks, any share on them (1e-7: roundings of solves).
    """
    a, gates, z = np.atleast_2d(a), np.asarray(gates).reshape(len(W), len(x)).T, x @ W.T
    assert np.all((gates == 1.0)[z > 1e-7]) and np.all((gates == 0.0)[z < -1e-7])
    assert np.all((0.0 <= gates) & (gates <= 1.0))
    left = a - push.T @ np.maximum(z, 0.0), W - np.einsum("ic,cu,iu,id->ud", push, a, gates, x)
    return float(np.sqrt(sum(np.sum(part**2) for part in left) / (np.sum(W**2) + np.sum(a**2))))
