r"""Diagonal networks of two layers and their gradients as one writes them without a library: NumPy, JAX and PyTorch.

$f(x)=\langle x,u\odot v\rangle$ with flat parameters (u, v); the loss is the mean logistic loss of labels ±1, or
half the mean square of residuals. Time is physical time, and what underflows does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Instances(NamedTuple):
    """Inputs (k, n, d), labels or targets (k, n), whether they are targets (k,), and flat starts (k, 2d)."""

    inputs: np.ndarray
    targets: np.ndarray
    regression: np.ndarray
    starts: np.ndarray

    def first(self, number: int) -> "Instances":
        """The first few of them."""
        return Instances(*(part[:number] for part in self))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What a gradient is of, for each instance."""
        return self.inputs, self.targets, self.regression

    @staticmethod
    def jax_loss(flat: Any, inputs: Any, targets: Any, regression: Any) -> Any:
        """The loss of one instance, for `jax.grad`."""
        import jax
        import jax.numpy as jnp

        u, v = flat.reshape(2, -1)
        outputs = inputs @ (u * v)
        squares = 0.5 * (outputs - targets) ** 2
        return jnp.mean(jnp.where(regression, squares, jax.nn.softplus(-targets * outputs)))

    @staticmethod
    def numpy_gradient(inputs: np.ndarray, targets: np.ndarray, regression: np.ndarray) -> Callable:
        """The gradient by flat parameters of one instance."""
        from scipy.special import expit

        def gradient(flat: np.ndarray) -> np.ndarray:
            u, v = flat.reshape(2, -1)
            outputs = inputs @ (u * v)
            slopes = outputs - targets if regression else -targets * expit(-targets * outputs)
            by_products = slopes @ inputs / len(targets)
            return np.concatenate([by_products * v, by_products * u])

        return gradient

    def torch_gradient(self) -> Callable[[Any], Any]:
        """Gradients of the batch by hand, `(k, p)` to `(k, p)`."""
        import torch

        inputs, targets, regression = (torch.from_numpy(part.copy()) for part in self.arrays)
        n = targets.shape[1]

        def gradient(flat: Any) -> Any:
            u, v = flat.reshape(len(flat), 2, -1).unbind(1)
            outputs = torch.bmm(inputs, (u * v)[:, :, None])[..., 0]
            slopes = -targets * torch.sigmoid(-targets * outputs)
            slopes = torch.where(regression[:, None], outputs - targets, slopes)
            by_products = torch.bmm(slopes[:, None], inputs)[:, 0] / n
            return torch.cat([by_products * v, by_products * u], 1)

        return gradient


def of_network(risk: Any, model: Any) -> Instances:
    """A batch of `DiagonalLinearNetwork` of two layers under the logistic loss."""
    return _of(risk, np.concatenate(model.weights, axis=1), False)


def of_products(risk: Any, model: Any) -> Instances:
    """A batch of `HadamardNetwork` under the squared loss; of a start below the smallest number zeros are left."""
    logs = model.log_weights
    total, difference = np.exp(np.asarray(logs.log_sum)), np.exp(np.asarray(logs.log_difference))
    signs = np.asarray(logs.sign)
    large, small = signs * (total + difference) / 2, signs * (total - difference) / 2
    swapped = np.asarray(logs.swapped)
    u, v = np.where(swapped, small, large), np.where(swapped, large, small)
    return _of(risk, np.concatenate([u, v], axis=1), True)


def products(flat: np.ndarray) -> np.ndarray:
    """β = u ⊙ v of flat ends `(k, 2p)`."""
    halves = flat.reshape(len(flat), 2, -1)
    return halves[:, 0] * halves[:, 1]


def _of(risk: Any, starts: np.ndarray, regression: bool) -> Instances:
    inputs, targets = (np.asarray(part) for part in (risk.data.inputs, risk.data.targets))
    return Instances(inputs, targets, np.full(len(starts), regression), starts)
