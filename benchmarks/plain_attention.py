"""Attention and its gradient as one writes them without a library for it: in NumPy, JAX and PyTorch.

`W` or K and Q side by side are flat vectors; logits are those of the library, $a_{it}=x_{it}^T W z_i$, and the loss is
the mean logistic loss. Time is physical time, and gradients underflow where floating point has it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Numbers of an instance's matrix of outer products from which W is multiplied by tokens and queries instead.
MOST_OUTER = 2e7


class Instances(NamedTuple):
    """Tokens (k, n, T, d), queries (k, n, d), labels (k, n), heads (k, d), and flat starts (k, p)."""

    tokens: np.ndarray
    queries: np.ndarray
    labels: np.ndarray
    heads: np.ndarray
    starts: np.ndarray

    def first(self, number: int) -> "Instances":
        """The first few of them."""
        return Instances(*(part[:number] for part in self))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What a gradient is of, for each instance."""
        return tuple(self[:4])

    @staticmethod
    def jax_loss(flat: Any, *arrays: Any) -> Any:
        """The loss of one instance, for `jax.grad`."""
        return jax_loss(flat, *arrays)

    @staticmethod
    def numpy_gradient(*arrays: np.ndarray) -> Callable:
        """The gradient by flat parameters of one instance."""
        return numpy_gradient(*arrays)

    def torch_gradient(self) -> Callable[[Any], Any]:
        """Gradients of the batch by hand."""
        return torch_gradient(self)


def of(risk: Any, model: Any) -> Instances:
    """The arrays of a batch of risks and models of the library."""
    data = risk.data
    flat = model.W if hasattr(model, "W") else np.stack([model.K, model.Q], axis=1)
    parts = (data.tokens, data.queries, data.labels, model.head.v, flat)
    tokens, queries, labels, heads, starts = (np.asarray(part) for part in parts)
    return Instances(tokens, queries, labels, heads, starts.reshape(len(starts), -1))


def combined(flat: np.ndarray, d: int) -> np.ndarray:
    """W of flat parameters `(..., p)`, which are W itself or K and Q."""
    if flat.shape[-1] == d * d:
        return flat.reshape(*flat.shape[:-1], d, d)
    K, Q = np.moveaxis(flat.reshape(*flat.shape[:-1], 2, d, -1), -3, 0)
    return K @ np.swapaxes(Q, -1, -2)


def numpy_gradient(tokens: np.ndarray, queries: np.ndarray, labels: np.ndarray, head: np.ndarray) -> Callable:
    """The gradient by flat parameters of one instance: two products with a matrix that is formed once, unless it is
    large."""
    from scipy.special import expit

    n, T, d = tokens.shape
    small = n * T * d * d <= MOST_OUTER
    outer = (tokens[..., :, None] * queries[:, None, None, :]).reshape(n * T, d * d) if small else None
    values = tokens @ head

    def by_weights(W: np.ndarray) -> np.ndarray:
        if outer is not None:
            logits = (outer @ W.ravel()).reshape(n, T)
        else:
            logits = (tokens @ (queries @ W.T)[:, :, None])[..., 0]
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        attention = weights / weights.sum(-1, keepdims=True)
        outputs = (attention * values).sum(-1)
        slopes = -labels * expit(-labels * outputs) / n
        pulled = slopes[:, None] * attention * (values - outputs[:, None])
        if outer is None:
            return np.einsum("nt,ntd->nd", pulled, tokens).T @ queries
        return (pulled.ravel() @ outer).reshape(d, d)

    def gradient(flat: np.ndarray) -> np.ndarray:
        if flat.size == d * d:
            return by_weights(flat.reshape(d, d)).ravel()
        K, Q = flat.reshape(2, d, -1)
        by_W = by_weights(K @ Q.T)
        return np.concatenate([(by_W @ Q).ravel(), (by_W.T @ K).ravel()])

    return gradient


def jax_loss(flat: Any, tokens: Any, queries: Any, labels: Any, head: Any) -> Any:
    """The loss of one instance, for `jax.grad`."""
    import jax
    import jax.numpy as jnp

    d = tokens.shape[-1]
    if flat.size == d * d:
        W = flat.reshape(d, d)
    else:
        K, Q = flat.reshape(2, d, -1)
        W = K @ Q.T
    attention = jax.nn.softmax(jnp.einsum("ntd,de,ne->nt", tokens, W, queries), axis=-1)
    outputs = jnp.einsum("nt,ntd,d->n", attention, tokens, head)
    return jnp.mean(jax.nn.softplus(-labels * outputs))


def torch_gradient(some: Instances) -> Callable[[Any], Any]:
    """Gradients of a batch by hand, `(k, p)` to `(k, p)`: cheaper than by `autograd`."""
    import torch

    tokens, queries, labels, heads, _ = (torch.from_numpy(part.copy()) for part in some)
    k, n, T, d = tokens.shape
    small = n * T * d * d <= MOST_OUTER
    outer = (tokens[..., :, None] * queries[:, :, None, None, :]).reshape(k, n * T, d * d) if small else None
    values = torch.einsum("kntd,kd->knt", tokens, heads)

    def by_weights(W: Any) -> Any:
        if outer is not None:
            logits = torch.bmm(outer, W.reshape(k, d * d, 1)).reshape(k, n, T)
        else:
            logits = torch.einsum("kntd,knd->knt", tokens, torch.bmm(queries, W.mT))
        attention = torch.softmax(logits, -1)
        outputs = (attention * values).sum(-1)
        slopes = -labels * torch.sigmoid(-labels * outputs) / n
        pulled = slopes[..., None] * attention * (values - outputs[..., None])
        if outer is None:
            return torch.bmm(torch.einsum("knt,kntd->knd", pulled, tokens).mT, queries)
        return torch.bmm(pulled.reshape(k, 1, n * T), outer).reshape(k, d, d)

    def gradient(flat: Any) -> Any:
        if flat.shape[-1] == d * d:
            return by_weights(flat.reshape(k, d, d)).reshape(k, -1)
        K, Q = flat.reshape(k, 2, d, -1).unbind(1)
        by_W = by_weights(K @ Q.mT)
        return torch.stack([by_W @ Q, by_W.mT @ K], 1).reshape(k, -1)

    return gradient
