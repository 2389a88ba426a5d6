"""The pieces of the nuclear-norm solver against NumPy: its Schur matrix, the polish, and what it takes for settled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.margin import attention_svm, solve
from jaxflow.margin.matrix_room import MOST_PAIRED, DenseRoom, RankOneRoom
from jaxflow.margin.min_norm_point import START_TOLERANCE, min_norm_point
from jaxflow.margin.nuclear_polish import polish, settled
from jaxflow.margin.program import RankOneRows
from tests.margin.instances import single


@pytest.mark.parametrize("q", [3, MOST_PAIRED, MOST_PAIRED + 1])
def test_schur_matrix_is_the_sum_of_traces(q: int) -> None:
    rng = np.random.default_rng(q)
    m = 7
    G, H, F = rng.normal(size=(m, q)), rng.normal(size=(m, q)), rng.normal(size=(m, 4))
    Y, P = (root @ root.T for root in rng.normal(size=(2, q, q)))
    D = H[:, :, None] * G[:, None, :] + G[:, :, None] * H[:, None, :]
    expected = 2 * (F @ F.T) * (G @ Y @ G.T) + np.einsum("kab,bc,lcd,da->kl", D, Y, D, P)
    room = RankOneRoom(jnp.asarray(F @ F.T), jnp.asarray(G), jnp.ones(m, bool))
    found = room.schur((jnp.asarray(G), jnp.asarray(H)), jnp.asarray(Y), jnp.asarray(P))
    # Sums of some q⁴ roundings of terms as large as the largest entry.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


def test_a_dense_room_and_one_of_rank_one_agree() -> None:
    rng = np.random.default_rng(0)
    F, G, weights = rng.normal(size=(7, 5)), rng.normal(size=(7, 3)), rng.normal(size=7)
    Y, P = (jnp.asarray(root @ root.T) for root in rng.normal(size=(2, 3, 3)))
    rooms = (
        RankOneRoom(jnp.asarray(F @ F.T), jnp.asarray(G), jnp.ones(7, bool)),
        DenseRoom(jnp.asarray(F[:, :, None] * G[:, None, :])),
    )
    first, second = (
        (room.square(jnp.asarray(weights)), room.finish(jnp.asarray(weights), Y), room.schur(point, Y, P))
        for room in rooms
        for point in [room.combine(jnp.asarray(weights))]
    )
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.abs(np.asarray(b)).max())


@pytest.fixture(scope="module")
def solved() -> tuple[Any, Any, Any]:
    """The constraints of a random program, and its λ and Q with W = M Q Qᵀ."""
    program = attention_svm(*single(3), "nuclear")
    solution = solve(program)
    assert solution.result == "optimal"
    compact = program.compact()
    rows = compact.rows
    assert isinstance(rows, RankOneRows)
    _, values, right = np.linalg.svd(np.asarray(solution.primal))
    Q = jnp.asarray(right.T * np.sqrt(values))
    weights = solution.dual.reshape(-1)[compact.slots]
    return (rows.left @ rows.left.T, rows.repeat(rows.right), compact.inequality, compact.equality), weights, Q


@pytest.mark.slow
def test_only_a_closed_gap_is_settled(solved) -> None:
    (a, b, c, d), weights, Q = solved
    assert settled(a, b, c, d, weights, Q)
    heaviest = jnp.argmax(weights)
    for factor in (1 + 1e-9, 1 - 1e-9):
        # A dual that is infeasible or too small, and a margin below one or a primal too large.
        assert not settled(a, b, c, d, weights * factor, Q)
        assert not settled(a, b, c, d, weights.at[heaviest].multiply(factor), Q)
    bent = Q.at[0, 0].add(1e-4)
    assert not settled(a, b, c, d, weights, bent)
    assert not settled(a, b, c, d, weights, Q * jnp.nan)
    assert not settled(a, b, c, d, 0 * weights, 0 * Q)


def test_polish_brings_the_last_digits_back(solved) -> None:
    (a, b, c, d), weights, Q = solved
    Y = 0.5 * Q @ Q.T
    near = weights * (1 + 1e-6 * jnp.cos(jnp.arange(len(weights))))
    shaken = Y + 1e-7 * jnp.trace(Y) * jnp.eye(len(Y))
    better, polished, closed = polish(a, b, c, d, near, shaken)
    assert closed
    # Rounding, times a condition number that leaves four digits.
    np.testing.assert_allclose(better, weights, atol=1e-11)
    np.testing.assert_allclose(polished, Y, atol=1e-11)
    assert not polish(a, b, c, d, near * jnp.nan, shaken)[2]


@pytest.mark.slow
def test_a_start_is_polished_where_it_proves_something() -> None:
    rng = np.random.default_rng(0)
    inequality = jnp.ones(6, bool)
    left = jnp.asarray(rng.normal(size=(6, 3)))
    feasible = RankOneRows(left.at[:, 0].set(1.0), jnp.ones((2, 2)))
    opposite = RankOneRows(jnp.concatenate([left[:3], -left[:3]]), jnp.ones((1, 2)))
    for rows, zero in ((feasible, False), (opposite, True)):
        exact = min_norm_point(rows, inequality, ~inequality)
        start = min_norm_point(rows, inequality, ~inequality, start=True)
        assert exact.zero == start.zero == zero
        if zero:
            np.testing.assert_array_equal(start.weights, exact.weights)
            assert np.abs(rows.combine(start.weights)).max() < 1e-14
        else:
            np.testing.assert_allclose(start.weights, exact.weights, atol=START_TOLERANCE)
