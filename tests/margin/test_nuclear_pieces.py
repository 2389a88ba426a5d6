"""The pieces of the nuclear-norm solver against NumPy: its Schur matrix, the polish, and what it takes for settled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxflow.margin import attention_svm, solve
from jaxflow.margin.matrix_room import DenseRoom, RankOneRoom
from jaxflow.margin.mehrotra import Constraints
from jaxflow.margin.nuclear_polish import polish, settled
from jaxflow.margin.program import RankOneRows
from tests.margin.instances import single


# Pairs of coordinates, q(q+1)/2, are more than 6q from 12 on.
@pytest.mark.parametrize("q", [3, 11, 12])
def test_schur_matrix_is_the_sum_of_traces_in_both_rooms(q: int) -> None:
    rng = np.random.default_rng(q)
    m = 7
    G, F, weights = (jnp.asarray(rng.normal(size=shape)) for shape in ((m, q), (m, 4), m))
    H = F @ (F * weights[:, None]).T @ G
    Y, P = (jnp.asarray(root @ root.T) for root in rng.normal(size=(2, q, q)))
    D = H[:, :, None] * G[:, None, :] + G[:, :, None] * H[:, None, :]
    expected = 2 * (F @ F.T) * (G @ Y @ G.T) + np.einsum("kab,bc,lcd,da->kl", D, Y, D, P)
    rooms = RankOneRoom(F @ F.T, G, jnp.ones(m, bool), True), DenseRoom(F[:, :, None] * G[:, None, :])
    for room in rooms:
        found = room.schur(room.combine(weights), Y, P)
        # Sums of some q⁴ roundings of terms as large as the largest entry.
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * np.abs(expected).max())
    points = [(room, room.combine(weights)) for room in rooms]
    one, other = ((room.inner(M, M), room.finish(weights, Y)) for room, M in points)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.abs(np.asarray(b)).max())


@pytest.mark.slow
def test_polish_brings_the_last_digits_back() -> None:
    """The λ of a random program, and Q with W = M Q Qᵀ; half of Q Qᵀ is the matrix of the interior point."""
    program = attention_svm(*single(3), "nuclear")
    solution = solve(program)
    assert solution.result == "optimal"
    compact = program.compact()
    rows = compact.rows
    assert isinstance(rows, RankOneRows)
    _, values, right = np.linalg.svd(np.asarray(solution.primal))
    Q = jnp.asarray(right.T * np.sqrt(values))
    Y = 0.5 * Q @ Q.T
    weights = solution.dual.reshape(-1)[compact.slots]
    constraints = Constraints(compact.inequality, compact.equality, compact.targets)
    room = RankOneRoom(rows.left @ rows.left.T, rows.repeat(rows.right), constraints.used, True)
    given = room, constraints
    near = weights * (1 + 1e-6 * jnp.cos(jnp.arange(len(weights))))
    shaken = Y + 1e-7 * jnp.trace(Y) * jnp.eye(len(Y))
    better, polished, closed = polish(*given, near, shaken)
    assert closed
    # Rounding, times a condition number that leaves four digits.
    np.testing.assert_allclose(better, weights, atol=1e-11)
    np.testing.assert_allclose(polished, Y, atol=1e-11)
    assert not polish(*given, near * jnp.nan, shaken)[2]
    # Only a closed gap is settled: not where the dual is infeasible or too small, nor where W is another one.
    assert settled(*given, weights, Q) and not settled(*given, weights, Q.at[0, 0].add(1e-4))
    for wrong in (weights * (1 + 1e-9), weights * (1 - 1e-9), weights.at[jnp.argmax(weights)].multiply(1 + 1e-9)):
        assert not settled(*given, wrong, Q)
