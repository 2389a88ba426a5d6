r"""Networks of products of weights, $f(x;u,v)=h(x;u\odot v)$ (Boix-Adserà et al. 2023, Definition 3.1)."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from jaxflow._core import ScaledGradient, as_array, as_vector, checked, normal, require
from jaxflow.data import LinearData, SampleData
from jaxflow.models.base import AbstractModel, Pullback, linearize_outputs, on_one_scale

# (x, a) -> h(x; a) for one input x and the products a, shape (p,).
ProductFunction = Callable[[Array, Array], Array]


class LogWeights(eqx.Module):
    r"""Weights u, v of any size, by logarithms.

    Where $|v_i|>|u_i|$ the two are exchanged, and both change sign where the larger is negative (Appendix C.3);
    neither changes a product. Then $w=u+v$ and $\tilde w=u-v$ are positive and stay so along the flow, and their
    product $c=u^2-v^2$ is conserved (Lemma 4.2).

    - `log_sum`: $\omega=\log w$; `log_difference`: $\tilde\omega=\log\tilde w$.
    - `sign`: ±1, of the larger weight; `swapped`: whether the larger was v.
    """

    log_sum: Float[Array, " p"]
    log_difference: Float[Array, " p"]
    sign: Float[Array, " p"]
    swapped: Bool[Array, " p"]

    @classmethod
    def of(cls, u: Float[Array, " p"], v: Float[Array, " p"], log_scale: Any = 0.0) -> "LogWeights":
        r"""Of $e^{s}u$ and $e^{s}v$, s the `log_scale`. Where $|u_i|=|v_i|$ one logarithm is −inf."""
        swapped = jnp.abs(v) > jnp.abs(u)
        large, small = jnp.where(swapped, v, u), jnp.where(swapped, u, v)
        sign = jnp.where(large < 0, -1.0, 1.0)
        total, difference = sign * (large + small), sign * (large - small)
        return cls(jnp.log(total) + log_scale, jnp.log(difference) + log_scale, sign, swapped)

    @property
    def log_conserved(self) -> Float[Array, " p"]:
        r"""$\log|u^2-v^2|$, constant along the flow."""
        return self.log_sum + self.log_difference

    @property
    def products(self) -> Float[Array, " p"]:
        r"""$u\odot v=(w^2-\tilde w^2)/4$; zero where it underflows."""
        return 0.25 * (jnp.exp(2.0 * self.log_sum) - jnp.exp(2.0 * self.log_difference))

    def mantissas(self, log_scale: Any = 0.0) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        r"""$e^{-s}u$ and $e^{-s}v$, s the `log_scale`."""
        total, difference = jnp.exp(self.log_sum - log_scale), jnp.exp(self.log_difference - log_scale)
        large, small = 0.5 * self.sign * (total + difference), 0.5 * self.sign * (total - difference)
        return jnp.where(self.swapped, small, large), jnp.where(self.swapped, large, small)


class HadamardNetwork(AbstractModel):
    r"""$f(x)=h(x;u\odot v)$ with u, v `(p,)` trained and everything inside h fixed, Definition 3.1.

    **Arguments:** `h`: a function of one input and the products `(p,)`, twice continuously differentiable in
    the products (an Equinox module, if it has arrays of its own); `u`, `v`: the weights.

    `logs`, which `scaled` and the coordinates `LogHadamard` set, are the weights without underflow or cancellation; u
    and v are then their floating-point values. Replace u or v by making a new network (or `with_weights`), not by
    editing one that has `logs`.
    """

    h: ProductFunction
    u: Float[Array, " p"]
    v: Float[Array, " p"]
    logs: LogWeights | None
    trained: ClassVar[tuple[str, ...]] = ("u", "v")

    # Annotated loosely: wrong arguments get the errors below, which say more than a type check.
    def __init__(self, h: Any, u: Any, v: Any, logs: LogWeights | None = None):
        self.h = h
        self.u = as_vector("u", u)
        self.v = as_array("v", v)
        self.logs = logs

    def __check_init__(self) -> None:
        require(callable(self.h), "h", "expected a function of an input and the products")
        require(
            isinstance(self.logs, LogWeights | None), "logs", f"expected LogWeights, got {type(self.logs).__name__}"
        )
        require(self.v.shape == self.u.shape, "v", f"expected u's shape {self.u.shape}, got {self.v.shape}")

    @classmethod
    @checked(least={"p": 1})
    def init(cls, key: Key[Array, ""], h: ProductFunction, p: int, log_scale: float = 0.0) -> "HadamardNetwork":
        r"""Standard Gaussian u and v times $\alpha=e^{s}$, s the `log_scale` (Appendix A of the paper)."""
        u, v = normal(key, (2, p))
        return cls(h, u, v).scaled(log_scale)

    @property
    def products(self) -> Float[Array, " p"]:
        r"""$u\odot v$."""
        return self.u * self.v if self.logs is None else self.logs.products

    @property
    def log_weights(self) -> LogWeights:
        """The weights by logarithms."""
        return LogWeights.of(self.u, self.v) if self.logs is None else self.logs

    def scaled(self, log_scale: Any) -> "HadamardNetwork":
        r"""$\theta(0)=\alpha\theta_0$ of equation (3), α given by its logarithm: $e^{-10000}$ is as accurate as 0.1."""
        logs = self.log_weights
        shifted = LogWeights(logs.log_sum + log_scale, logs.log_difference + log_scale, logs.sign, logs.swapped)
        return self.with_weights(shifted)

    def with_weights(self, logs: LogWeights) -> "HadamardNetwork":
        """The same network with other weights."""
        return HadamardNetwork(self.h, *logs.mantissas(), logs)

    def conserved(self) -> Float[Array, " p"]:
        r"""$u\odot u-v\odot v$, constant along the gradient flow (Lemma 4.2)."""
        if self.logs is None:
            return self.u**2 - self.v**2
        return jnp.where(self.logs.swapped, -1.0, 1.0) * jnp.exp(self.logs.log_conserved)

    def outputs(self, data: LinearData | SampleData) -> Float[Array, "..."]:
        return product_outputs(self.h, self.products, data)

    def linearize(self, data: LinearData | SampleData, trainable: PyTree) -> tuple[Float[Array, "..."], Pullback]:
        if self.logs is None or trainable != self.trainable():
            return linearize_outputs(lambda model: product_outputs(model.h, model.u * model.v, data), self, trainable)
        logs = self.logs
        values, vjp = jax.vjp(lambda a: product_outputs(self.h, a, data), self.products)
        # u and v may both lie below the smallest number; their ratios need not.
        size = jax.lax.stop_gradient(jnp.max(jnp.maximum(logs.log_sum, logs.log_difference)))
        u, v = logs.mantissas(size)

        def pullback(scales: Float[Array, "..."], weights: Float[Array, "..."]) -> ScaledGradient:
            scale, weights = on_one_scale(scales, weights)
            (slopes,) = vjp(weights)
            gradient = jax.tree.map(lambda moves: None, trainable)
            gradient = eqx.tree_at(
                lambda m: (m.u, m.v), gradient, (v * slopes, u * slopes), is_leaf=lambda x: x is None
            )
            return ScaledGradient(scale + size, gradient, weights)

        return values, pullback

    def check(self, data: Any) -> None:
        require(
            isinstance(data, LinearData | SampleData),
            "data",
            f"HadamardNetwork takes LinearData or SampleData, got {type(data).__name__}",
        )
        require(self.u.ndim == 1, "u", f"expected one instance (p,), got {self.u.shape}: map with jax.vmap")
        shape = jax.eval_shape(self.outputs, data).shape
        wanted = data.targets.shape
        require(shape == wanted, "h", f"gives outputs of shape {shape} where the targets have {wanted}")


class ProductNetwork(AbstractModel):
    r"""$h(x;a)$ as a model of its products a alone, which the log coordinates and Algorithm 1 differentiate."""

    h: ProductFunction
    products: Float[Array, " p"]
    trained: ClassVar[tuple[str, ...]] = ("products",)

    def outputs(self, data: LinearData | SampleData) -> Float[Array, "..."]:
        return product_outputs(self.h, self.products, data)

    def check(self, data: Any) -> None:
        require(isinstance(data, LinearData | SampleData), "data", "expected LinearData or SampleData")


def product_outputs(h: ProductFunction, products: Float[Array, " p"], data: LinearData | SampleData) -> Array:
    """h at every input."""
    return jax.vmap(lambda x: h(x, products))(data.inputs)
