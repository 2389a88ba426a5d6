"""A norm of the user's own with a solver of its own: certified like every other."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.margin import AbstractNorm, ProgramResult


class LInfinity(AbstractNorm):
    """max |x|, whose dual is the l1 norm; solved as a linear program by SciPy, on the host."""

    alias: ClassVar[str] = "linf"

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

    def solver(self):
        return by_linear_programming


def by_linear_programming(program):
    from scipy.optimize import linprog

    rows = np.asarray(program.compact().rows.rows)
    m, d = rows.shape
    # Variables v and s with |v_j| <= s: least s with rows v >= 1.
    box = np.vstack([np.hstack([np.eye(d), -np.ones((d, 1))]), np.hstack([-np.eye(d), -np.ones((d, 1))])])
    A = np.vstack([np.hstack([-rows, np.zeros((m, 1))]), box])
    b = np.concatenate([-np.ones(m), np.zeros(2 * d)])
    found = linprog(np.eye(d + 1)[d], A_ub=A, b_ub=b, bounds=(None, None))
    return jnp.asarray(found.x[:d]), jnp.asarray(-found.ineqlin.marginals[:m])


INPUTS = jax.random.normal(jax.random.key(0), (6, 4))
LABELS = jnp.sign(INPUTS @ jnp.ones(4))


@pytest.fixture(scope="module")
def program():
    return jf.margin.max_margin(INPUTS, LABELS, LInfinity())


@pytest.mark.slow
def test_the_norms_own_solver_is_used_and_certified(program):
    solution = jf.margin.solve(program)
    assert int(solution.result) == ProgramResult.optimal
    # HiGHS solves to 1e-9; the certificate does not know who solved it.
    assert abs(float(solution.certificate.duality_gap)) <= 1e-8
    reference = jf.margin.solve_cvxpy(program)
    assert abs(solution.certificate.primal_value - reference.certificate.primal_value) <= 1e-6


def test_a_wrong_solver_is_found_out(program):
    for primal, dual in ((jnp.ones(4), jnp.ones(6)), (-jnp.ones(4), jnp.ones(6))):
        solution = jf.margin.solve(program, solver=lambda program, primal=primal, dual=dual: (primal, dual))
        assert int(solution.result) in (ProgramResult.inaccurate, ProgramResult.failed)
    with pytest.raises(ValueError, match="solver: expected a primal point"):
        jf.margin.solve(program, solver=lambda program: (jnp.ones(3), jnp.ones(6)))


def test_a_solver_may_replace_a_built_in_method():
    program = jf.margin.max_margin(INPUTS, LABELS)
    built_in = jf.margin.solve(program)
    again = jf.margin.solve(program, solver=lambda program: (2 * built_in.primal, 3 * built_in.dual))
    assert int(again.result) == ProgramResult.optimal and jnp.allclose(again.primal, built_in.primal)


def test_a_norm_without_any_method_says_what_to_do():
    class Bare(AbstractNorm):
        alias: ClassVar[str] = "bare"
        __call__ = LInfinity.__call__
        dual = LInfinity.dual
        measure = LInfinity.measure
        expression = LInfinity.expression

    with pytest.raises(ValueError, match="norm: no built-in method for Bare; give it a `solver`"):
        jf.margin.solve(jf.margin.max_margin(INPUTS, LABELS, Bare()))
