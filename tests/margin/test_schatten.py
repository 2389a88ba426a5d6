"""Programs in Schatten norms beside SciPy's, and the derivative of the gradient map."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import jaxflow as jf
from jaxflow.margin import Schatten
from jaxflow.margin.potential import SpectralPotential, spectral_map

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(6, 3, 4))
VALUES = np.einsum("kij,ij->k", INPUTS, RNG.normal(size=(3, 4)))


def value_and_gradient(flat: np.ndarray, p: float) -> tuple[float, np.ndarray]:
    u, s, vt = np.linalg.svd(flat.reshape(3, 4), full_matrices=False)
    return np.sum(s**p) / p, ((u * s ** (p - 1)) @ vt).reshape(-1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["margins", "interpolation"])
@pytest.mark.parametrize("p", [1.5, 3.0])
def test_a_certified_optimum_is_that_of_scipy(p: float, kind: str) -> None:
    if kind == "margins":
        program, kinds = jf.margin.max_margin(INPUTS, np.sign(VALUES), Schatten(p)), "ineq"
        rows, levels = np.sign(VALUES)[:, None] * INPUTS.reshape(6, -1), np.ones(6)
    else:
        program, kinds = jf.margin.minimum_norm(INPUTS, VALUES, Schatten(p)), "eq"
        rows, levels = INPUTS.reshape(6, -1), VALUES
    solution = jf.margin.solve(program)
    assert solution.result == "optimal" and abs(float(solution.certificate.duality_gap)) <= 1e-10
    found = minimize(
        value_and_gradient,
        np.linalg.pinv(rows) @ levels,
        (p,),
        "SLSQP",
        jac=True,
        constraints={"type": kinds, "fun": lambda w: rows @ w - levels, "jac": lambda w: rows},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    np.testing.assert_allclose(solution.certificate.primal_value, (p * found.fun) ** (1 / p), rtol=1e-9)
    # Of a value known to 1e-14 the minimiser has half of the digits.
    np.testing.assert_allclose(solution.primal.reshape(-1), found.x, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1.5, 3.0])
def test_programs_of_attention_are_solved(p: float) -> None:
    data, _ = jf.data.random_tokens(jax.random.key(0), 3, 4, 4)
    assert jf.margin.solve(jf.margin.attention_svm(data, [0, 1, 2], Schatten(p))).result == "optimal"


# Singular values that are equal, zero, or both; beside more columns, more rows, and neither.
@pytest.mark.parametrize("values", [(2.0, 2.0, 0.5), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (3.0, 2.0, 1.0)])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (3, 3)])
def test_the_derivative_of_the_map(values: tuple[float, ...], shape: tuple[int, int]) -> None:
    u, v = (np.linalg.qr(RNG.normal(size=(size, 3)))[0] for size in shape)
    point, change, h = (u * np.array(values)) @ v.T, RNG.normal(size=shape), 1e-6
    # Twice differentiable at zero.
    slope = SpectralPotential(4.0, shape).bent(jnp.asarray(point.reshape(-1)), jnp.asarray(change.reshape(-1, 1)))
    ends = [spectral_map(jnp.asarray(point + sign * h * change), 4.0) for sign in (1, -1)]
    np.testing.assert_allclose(slope.reshape(shape), (ends[0] - ends[1]) / (2 * h), atol=1e-7)
    if min(values) > 0:
        own = jax.jvp(lambda x: spectral_map(x, 4.0), (jnp.asarray(point),), (jnp.asarray(change),))[1]
        np.testing.assert_allclose(own.reshape(-1), slope[:, 0], atol=1e-12)


def test_what_it_is_not_for_is_refused() -> None:
    with pytest.raises(ValueError, match="p: expected 1 < p < inf"):
        Schatten(1)
    with pytest.raises(ValueError, match="norm: the schatten norm needs a matrix"):
        jf.margin.max_margin(np.eye(2), [1.0, 1.0], Schatten(3))
    with pytest.raises(NotImplementedError, match="CVXPY has no Schatten norm"):
        jf.margin.solve_cvxpy(jf.margin.minimum_norm(INPUTS, VALUES, Schatten(3)))
