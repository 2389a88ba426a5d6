r"""Flows as one writes them without a library for them, in NumPy, JAX and PyTorch: attention and diagonal networks.

Attention: `W`, or K and Q side by side, are flat vectors; logits are those of the library, $a_{it}=x_{it}^T W z_i$, and
the loss is the mean logistic loss. Diagonal networks: $f(x)=\langle x,u\odot v\rangle$ with flat parameters (u, v); the
mean logistic loss of labels ±1, or half the mean square of residuals. Time is physical time, and gradients underflow
where floating point has it.

Gradients are by hand, which is cheaper than `autograd`, and once for both: of one instance in NumPy, of a batch in
PyTorch, with one more axis in front.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Numbers of an instance's matrix of outer products from which W is multiplied by tokens and queries instead.
MOST_OUTER = 2e7


class Operations(NamedTuple):
    """What NumPy and PyTorch have different names for: a matrix times a matrix, a matrix times a vector, and a vector
    times a matrix, or batches of them; and what is applied to numbers."""

    product: Callable[[Any, Any], Any]
    apply: Callable[[Any, Any], Any]
    combine: Callable[[Any, Any], Any]
    sigmoid: Callable[[Any], Any]
    softmax: Callable[[Any], Any]
    join: Callable[[list[Any], int], Any]


def numpy_operations() -> Operations:
    from scipy.special import expit

    def softmax(logits: np.ndarray) -> np.ndarray:
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    return Operations(np.matmul, np.matmul, np.matmul, expit, softmax, np.concatenate)


def torch_operations() -> Operations:
    import torch

    def apply(matrices: Any, vectors: Any) -> Any:
        return torch.bmm(matrices, vectors[..., None])[..., 0]

    def combine(vectors: Any, matrices: Any) -> Any:
        return torch.bmm(vectors[..., None, :], matrices)[..., 0, :]

    return Operations(torch.bmm, apply, combine, torch.sigmoid, partial(torch.softmax, dim=-1), torch.cat)


class Instances(NamedTuple):
    """A batch: what a gradient is of, flat starts `(k, p)`, the loss of one instance for `jax.grad`, its gradient."""

    arrays: tuple[np.ndarray, ...]
    starts: np.ndarray
    jax_loss: Callable[..., Any]
    gradient: Callable[..., Callable[[Any], Any]]

    def first(self, number: int) -> "Instances":
        """The first few of them."""
        return self._replace(arrays=tuple(part[:number] for part in self.arrays), starts=self.starts[:number])

    def numpy_gradient(self, *arrays: np.ndarray) -> Callable[[Any], Any]:
        """The gradient by flat parameters of one instance."""
        return self.gradient(numpy_operations(), *arrays)

    def torch_gradient(self) -> Callable[[Any], Any]:
        """Gradients of the batch, `(k, p)` to `(k, p)`."""
        import torch

        return self.gradient(torch_operations(), *(torch.from_numpy(part.copy()) for part in self.arrays))


def of_attention(risk: Any, model: Any) -> Instances:
    """A batch of risks and models of the library: tokens, queries, labels and heads."""
    data = risk.data
    flat = model.W if hasattr(model, "W") else np.stack([model.K, model.Q], axis=1)
    arrays = tuple(np.asarray(part) for part in (data.tokens, data.queries, data.labels, model.head.v))
    return Instances(arrays, np.asarray(flat).reshape(len(flat), -1), attention_loss, attention_gradient)


def combined(flat: Any, d: int) -> Any:
    """W of flat parameters `(..., p)`, which are W itself or K and Q."""
    if flat.shape[-1] == d * d:
        return flat.reshape(*flat.shape[:-1], d, d)
    pair = flat.reshape(*flat.shape[:-1], 2, d, -1)
    return pair[..., 0, :, :] @ pair[..., 1, :, :].mT


def attention_loss(flat: Any, tokens: Any, queries: Any, labels: Any, head: Any) -> Any:
    """The loss of one instance."""
    logits = jnp.einsum("ntd,de,ne->nt", tokens, combined(flat, tokens.shape[-1]), queries)
    outputs = jnp.einsum("nt,ntd,d->n", jax.nn.softmax(logits, axis=-1), tokens, head)
    return jnp.mean(jax.nn.softplus(-labels * outputs))


def attention_gradient(ops: Operations, tokens: Any, queries: Any, labels: Any, head: Any) -> Callable[[Any], Any]:
    """The gradient by flat parameters: two products with a matrix that is formed once, unless it is large."""
    *k, n, T, d = tokens.shape
    outer = None
    if n * T * d * d <= MOST_OUTER:
        outer = (tokens[..., :, None] * queries[..., :, None, None, :]).reshape(*k, n * T, d * d)
    values = (tokens @ head[..., None, :, None])[..., 0]

    def by_weights(W: Any) -> Any:
        if outer is not None:
            logits = ops.apply(outer, W.reshape(*k, d * d)).reshape(*k, n, T)
        else:
            logits = (tokens @ ops.product(queries, W.mT)[..., None])[..., 0]
        attention = ops.softmax(logits)
        outputs = (attention * values).sum(-1)
        slopes = -labels * ops.sigmoid(-labels * outputs) / n
        pulled = slopes[..., None] * attention * (values - outputs[..., None])
        if outer is not None:
            return ops.combine(pulled.reshape(*k, n * T), outer).reshape(*k, d, d)
        return ops.product((pulled[..., None, :] @ tokens)[..., 0, :].mT, queries)

    def gradient(flat: Any) -> Any:
        if flat.shape[-1] == d * d:
            return by_weights(flat.reshape(*k, d, d)).reshape(*k, -1)
        pair = flat.reshape(*k, 2, d, -1)
        K, Q = pair[..., 0, :, :], pair[..., 1, :, :]
        by_W = by_weights(ops.product(K, Q.mT))
        return ops.join([ops.product(by_W, Q).reshape(*k, -1), ops.product(by_W.mT, K).reshape(*k, -1)], -1)

    return gradient


def of_network(risk: Any, model: Any) -> Instances:
    """A batch of `DiagonalLinearNetwork` of two layers under the logistic loss."""
    return _of_products(risk, np.concatenate(model.weights, axis=1), False)


def of_regression(risk: Any, model: Any) -> Instances:
    """A batch of `HadamardNetwork` under the squared loss; of a start below the smallest number zeros are left."""
    logs = model.log_weights
    total, difference = np.exp(np.asarray(logs.log_sum)), np.exp(np.asarray(logs.log_difference))
    signs = np.asarray(logs.sign)
    large, small = signs * (total + difference) / 2, signs * (total - difference) / 2
    swapped = np.asarray(logs.swapped)
    u, v = np.where(swapped, small, large), np.where(swapped, large, small)
    return _of_products(risk, np.concatenate([u, v], axis=1), True)


def products(flat: Any) -> Any:
    """β = u ⊙ v of flat parameters `(..., 2p)`."""
    halves = flat.reshape(*flat.shape[:-1], 2, -1)
    return halves[..., 0, :] * halves[..., 1, :]


def _of_products(risk: Any, starts: np.ndarray, regression: bool) -> Instances:
    arrays = np.asarray(risk.data.inputs), np.asarray(risk.data.targets)
    return Instances(arrays, starts, partial(network_loss, regression), partial(network_gradient, regression))


def network_loss(regression: bool, flat: Any, inputs: Any, targets: Any) -> Any:
    """The loss of one instance."""
    outputs = inputs @ products(flat)
    return jnp.mean(0.5 * (outputs - targets) ** 2 if regression else jax.nn.softplus(-targets * outputs))


def network_gradient(regression: bool, ops: Operations, inputs: Any, targets: Any) -> Callable[[Any], Any]:
    """The gradient by flat parameters."""
    *k, n = targets.shape

    def gradient(flat: Any) -> Any:
        halves = flat.reshape(*k, 2, -1)
        u, v = halves[..., 0, :], halves[..., 1, :]
        outputs = ops.apply(inputs, u * v)
        slopes = outputs - targets if regression else -targets * ops.sigmoid(-targets * outputs)
        by_products = ops.combine(slopes, inputs) / n
        return ops.join([by_products * v, by_products * u], -1)

    return gradient
