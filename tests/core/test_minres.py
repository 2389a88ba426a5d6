"""MINRES against a factorisation."""

import jax.numpy as jnp
import numpy as np

from jaxflow._core import minres


def test_an_indefinite_system_is_solved() -> None:
    """Two leaves, eigenvalues of both signs, each five times: as many products as there are different ones."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    K = turn @ np.diag(np.repeat([-2.0, -0.3, 0.1, 0.7, 1.0, 5.0], 5)) @ turn.T
    b = rng.normal(size=30)

    def product(x):
        image = K @ jnp.concatenate([x["a"], x["b"]])
        return {"a": image[:10], "b": image[10:]}

    right = {"a": jnp.asarray(b[:10]), "b": jnp.asarray(b[10:])}
    found, count = minres(product, right, rtol=1e-12, max_steps=100)
    assert 6 <= int(count) <= 8
    # The condition number, 50, times the residual asked for, and roundings.
    np.testing.assert_allclose(np.concatenate([found["a"], found["b"]]), np.linalg.solve(K, b), atol=1e-10)
    nothing, count = minres(product, {"a": jnp.zeros(10), "b": jnp.zeros(20)}, rtol=1e-12, max_steps=100)
    assert int(count) == 0 and not np.any(nothing["a"])
