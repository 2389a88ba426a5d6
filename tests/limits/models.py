"""Models of a user's own, as plain callables."""

import equinox as eqx
import jax


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
