"""A norm of the user's own with a solver of its own: certified like every other."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import jaxflow as jf
from jaxflow.margin import AbstractNorm, max_margin, solve

# Margins are 1, 1/2, 2 and 4 times the entries, each with its sign: the least max norm is 2, for the second one.
LABELS = jnp.array([1.0, -1.0, 1.0, -1.0])
INPUTS, DUAL = jnp.diag(jnp.array([1.0, 0.5, 2.0, 4.0])), jnp.array([0.0, 1.0, 0.0, 0.0])


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
    """The same with a solver, whose points have any scale."""

    def solver(self):
        return lambda program: (6.0 * LABELS, 3.0 * DUAL)


@pytest.mark.slow
def test_the_norms_own_solver_is_used_and_certified():
    program = max_margin(INPUTS, LABELS, Solved())
    solution, reference = solve(program), jf.margin.solve_cvxpy(program)
    assert solution.result == "optimal" and solution.certificate.primal_value == 2.0
    # What Clarabel leaves where it is asked for 1e-10.
    np.testing.assert_allclose(reference.certificate.primal_value, 2.0, rtol=1e-8)


def test_a_wrong_solver_is_found_out():
    program = max_margin(INPUTS, LABELS, Solved())
    for primal, result in ((jnp.ones(4), "failed"), (LABELS.at[0].multiply(1.0001), "inaccurate")):
        solution = solve(program, solver=lambda program, primal=primal: (primal, DUAL))
        assert solution.result == result
    with pytest.raises(ValueError, match="solver: expected a primal point"):
        solve(program, solver=lambda program: (jnp.ones(3), DUAL))
    with pytest.raises(ValueError, match="norm: no built-in method for Bare; give it a `solver`"):
        solve(max_margin(INPUTS, LABELS, Bare()))
