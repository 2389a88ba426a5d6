"""A norm of the user's own with a solver of its own: certified like every other."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

import jaxflow as jf
from jaxflow.margin import AbstractNorm, max_margin, solve

INPUTS = jax.random.normal(jax.random.key(0), (6, 4))
LABELS = jnp.sign(INPUTS @ jnp.ones(4))


class Bare(AbstractNorm):
    """max |x|, whose dual is the l1 norm."""

    alias: ClassVar[str] = "own"

    def __call__(self, primal):
        return jnp.max(jnp.abs(primal))

    def dual(self, adjoint):
        return jnp.sum(jnp.abs(adjoint))

    def measure(self, primal, adjoint):
        size, dual = self(primal), self.dual(adjoint)
        return size, dual, 1 - jnp.sum(primal * adjoint) / jnp.where(size * dual > 0, size * dual, 1.0)

    def expression(self, variable: Any) -> Any:
        import cvxpy as cp

        return cp.norm(variable, "inf")


class Solved(Bare):
    """The same, solved as a linear program by SciPy, on the host."""

    def solver(self):
        return by_linear_programming


def by_linear_programming(program):
    rows = np.asarray(program.compact().rows.rows)
    m, d = rows.shape
    # Variables v and s with |v_j| <= s: least s with rows v >= 1.
    box = np.c_[np.r_[np.eye(d), -np.eye(d)], -np.ones(2 * d)]
    A = np.r_[np.c_[-rows, np.zeros(m)], box]
    b = np.r_[-np.ones(m), np.zeros(2 * d)]
    found = linprog(np.eye(d + 1)[d], A_ub=A, b_ub=b, bounds=(None, None))
    return jnp.asarray(found.x[:d]), jnp.asarray(-found.ineqlin.marginals[:m])


@pytest.mark.slow
def test_the_norms_own_solver_is_used_and_certified():
    program = max_margin(INPUTS, LABELS, Solved())
    solution, reference = solve(program), jf.margin.solve_cvxpy(program)
    assert solution.result == "optimal"
    # HiGHS solves to 1e-9; the certificate does not know who solved it.
    assert abs(float(solution.certificate.duality_gap)) <= 1e-8
    assert abs(solution.certificate.primal_value - reference.certificate.primal_value) <= 1e-6


def test_a_wrong_solver_is_found_out():
    program = max_margin(INPUTS, LABELS, Solved())
    for primal in (jnp.ones(4), -jnp.ones(4)):
        solution = solve(program, solver=lambda program, primal=primal: (primal, jnp.ones(6)))
        assert solution.result.name in ("inaccurate", "failed")
    with pytest.raises(ValueError, match="solver: expected a primal point"):
        solve(program, solver=lambda program: (jnp.ones(3), jnp.ones(6)))
    with pytest.raises(ValueError, match="norm: no built-in method for Bare; give it a `solver`"):
        solve(max_margin(INPUTS, LABELS, Bare()))


def test_a_solver_may_replace_a_built_in_method():
    program = max_margin(INPUTS, LABELS)
    built_in = solve(program)
    again = solve(program, solver=lambda program: (2 * built_in.primal, 3 * built_in.dual))
    assert again.result == "optimal" and jnp.allclose(again.primal, built_in.primal)
