"""Programs of matrices, and the norms ℓ∞ and spectral: against Clarabel, by their certificates, and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.data import random_tokens
from jaxflow.margin import attention_svm, completion, max_margin, minimum_norm, solve, solve_cvxpy

RNG = np.random.default_rng(0)
# What Clarabel, asked for 1e-10, and a certified gap of 1e-10 leave.
CLOSE = 1e-8


def stacked(programs):
    return jax.tree.map(lambda *parts: jnp.stack(parts), *programs)


def linear(build, norm, shape, targets):
    return [build(RNG.normal(size=shape), targets(shape[0]), norm) for _ in range(50)]


def real(n):
    return RNG.normal(size=n)


def signs(n):
    return RNG.choice([-1.0, 1.0], n)


FAMILIES = {
    "linf, margins": lambda: linear(max_margin, "linf", (8, 12), signs),
    "linf, interpolation": lambda: linear(minimum_norm, "linf", (6, 12), real),
    "spectral, margins": lambda: linear(max_margin, "spectral", (10, 4, 5), signs),
    "spectral, interpolation": lambda: linear(minimum_norm, "spectral", (10, 5, 4), real),
    "nuclear, margins": lambda: linear(max_margin, "nuclear", (10, 4, 5), signs),
    "nuclear, interpolation": lambda: linear(minimum_norm, "nuclear", (10, 5, 4), real),
    "l1 of a matrix": lambda: linear(max_margin, "l1", (10, 4, 5), signs),
    "linf of a matrix": lambda: linear(minimum_norm, "linf", (10, 5, 4), real),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_fifty_programs_are_certified_and_agree_with_clarabel(name):
    programs = FAMILIES[name]()
    solved = jax.jit(jax.vmap(solve))(stacked(programs))
    certificate = solved.certificate
    assert np.abs(certificate.duality_gap).max() <= CLOSE and certificate.feasibility.max() <= CLOSE
    assert (solved.result == "optimal").mean() >= 0.96
    for at in range(3):
        reference = solve_cvxpy(programs[at])
        assert reference.result == "optimal"
        np.testing.assert_allclose(certificate.primal_value[at], reference.certificate.primal_value, rtol=CLOSE)


def partly(norm, symmetric, count):
    """Rank-two 10 x 10 matrices of which 60 in 100 entries are known."""
    programs = []
    for _ in range(count):
        U, V = RNG.normal(size=(2, 10, 2))
        matrix = U @ (U if symmetric else V).T
        programs.append(completion(np.where(RNG.random((10, 10)) < 0.6, matrix, np.nan), None, norm, symmetric))
    return programs


@pytest.mark.parametrize("symmetric", [False, True])
def test_fifty_completions_are_certified_and_agree_with_clarabel(symmetric):
    programs = partly("nuclear", symmetric, 50)
    solved = jax.jit(jax.vmap(solve))(stacked(programs))
    gaps = np.abs(solved.certificate.duality_gap)
    assert gaps.max() <= CLOSE and solved.certificate.feasibility.max() <= CLOSE
    if symmetric:
        np.testing.assert_array_equal(solved.primal, solved.primal.transpose(0, 2, 1))
    for at in range(3):
        reference = float(solve_cvxpy(programs[at]).certificate.primal_value)
        # Clarabel is the less accurate one where multipliers are not unique (symmetric: 6e-9 measured).
        np.testing.assert_allclose(solved.certificate.primal_value[at], reference, rtol=3 * CLOSE)


@pytest.mark.parametrize("norm", ["l1", "linf", "frobenius"])
def test_symmetric_completion_in_other_norms(norm):
    matrix = np.array([[1.0, np.nan, 3.0], [2.0, np.nan, np.nan], [np.nan, -1.0, 0.5]])
    solution = solve(completion(matrix, norm=norm, symmetric=True))
    assert solution.result == "optimal"
    np.testing.assert_allclose(solution.primal, solution.primal.T, rtol=0, atol=0)
    known = np.array([[1.0, 2.0, 3.0], [2.0, 0.0, -1.0], [3.0, -1.0, 0.5]])
    off = np.abs(np.asarray(solution.primal) - known)
    assert off[np.arange(9).reshape(3, 3) != 4].max() <= CLOSE


def test_a_mask_says_what_is_known():
    matrix = RNG.normal(size=(4, 3))
    mask = RNG.random((4, 3)) < 0.5
    by_mask = solve(completion(matrix, mask))
    by_nan = solve(completion(np.where(mask, matrix, np.nan)))
    np.testing.assert_allclose(by_mask.primal, by_nan.primal, rtol=0, atol=0)
    np.testing.assert_allclose(np.asarray(by_mask.primal)[mask], matrix[mask], rtol=0, atol=1e-12)


def test_without_a_solution_there_is_a_farkas_ray():
    inputs = RNG.normal(size=(3, 2, 4))
    twice = np.concatenate([inputs, inputs])
    for norm in ("nuclear", "spectral", "linf"):
        for program in (
            max_margin(twice, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0], norm),
            minimum_norm(twice, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0], norm),
        ):
            solution = solve(program)
            assert solution.result == "infeasible" and solution.certificate.proves_infeasible


def test_complex_and_attention():
    inputs, labels = RNG.normal(size=(5, 9)), signs(5)
    program = max_margin(inputs, labels, "linf", "dft")
    ours = solve(program)
    assert ours.result == "optimal"
    np.testing.assert_allclose(ours.certificate.primal_value, solve_cvxpy(program).certificate.primal_value, rtol=CLOSE)
    data, _ = random_tokens(jax.random.key(0), 3, 4, 5)
    sets = jnp.zeros((3, 4), bool).at[:, 0].set(True).at[0, 1].set(True)
    for norm in ("spectral", "linf"):
        program = attention_svm(data, sets, norm)
        solution = solve(program)
        assert solution.result == "optimal"
        reference = float(solve_cvxpy(program).certificate.primal_value)
        np.testing.assert_allclose(solution.certificate.primal_value, reference, rtol=CLOSE)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: max_margin([[1.0, 2.0]], [1.0], "spectral"), "norm: the spectral norm needs a matrix"),
        (lambda: minimum_norm(np.ones((2, 3, 3)), [1.0, 1.0], transform=np.eye(3)), "transform: expected None"),
        (lambda: completion(np.ones((2, 3)), symmetric=True), "symmetric: a symmetric matrix is square"),
        (lambda: completion([[1.0, 2.0], [3.0, 1.0]], symmetric=True), "matrix: the entry at .* and its mirror"),
        (lambda: completion([[1.0, np.inf], [3.0, 1.0]]), "matrix: NaN or infinite entry where one is known"),
        (lambda: completion(np.ones((2, 2)), np.ones((2, 3), bool)), "mask: expected Booleans of shape"),
    ],
)
def test_bad_input_is_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
