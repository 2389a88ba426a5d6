"""Reference solutions through CVXPY: slow, independent, for cross-checks. Needs the packages cvxpy and
clarabel."""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxflow._core import Code, check_kind, check_name, is_concrete, require
from jaxflow.margin.certificate import Certificate, CertificateSource, ProgramResult, Solution, bounds_of
from jaxflow.margin.norms import Frobenius, Nuclear
from jaxflow.margin.program import AbstractProgram, RankOneRows

# Clarabel's own stopping tolerances. Below about 1e-11 it reports "almost solved" on some instances.
CLARABEL = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
# The certified gap above which a solver's "optimal" is not believed.
BELIEVED_GAP = 1e-6


def solve_cvxpy(program: AbstractProgram, solver: str = "CLARABEL", **options: Any) -> Solution:
    """Solves one convex program with CVXPY and certifies the answer.

    **Arguments:** `solver` and `options` go to `cvxpy.Problem.solve`; for Clarabel the tolerances default to
    1e-10.

    **Returns:** a `Solution`. CVXPY's status is mapped strictly: `optimal` counts only with a certified gap
    of at most 1e-6; `optimal_inaccurate` is `inaccurate`; `infeasible` is `infeasible` (CVXPY gives no
    certificate for it: `solve` does); `user_limit` is `budget_spent`; everything else, an answer that is
    None, and an error inside the solver, is `failed`.

    **Raises:** `ValueError` naming the argument for a traced program, a norm that is not convex, a rank
    bound, or data with NaN; `ImportError` without cvxpy.
    """
    import cvxpy as cp

    require(isinstance(program, AbstractProgram), "program", f"expected a program, got {type(program).__name__}")
    check_kind("solver", solver, str, "the name of a solver of CVXPY")
    check_name("solver", solver, cp.installed_solvers())
    require(is_concrete(program), "program", "solve_cvxpy runs outside jit and vmap; use jf.margin.solve there")
    bounded = isinstance(program.norm, Nuclear) and program.norm.rank is not None
    require(not bounded, "norm", "a rank bound is not convex; CVXPY cannot state it")
    compact = program.compact()
    require(bool(compact.finite), "program", "NaN or infinite data")

    zero = program.primal_zero
    variable = cp.Variable(zero.shape, complex=bool(jnp.iscomplexobj(zero)))
    if isinstance(compact.rows, RankOneRows):
        left, right = np.asarray(compact.rows.left), np.asarray(compact.rows.repeat(compact.rows.right))
        values = cp.sum(cp.multiply(left @ variable, right), axis=1)
    else:
        rows = np.conj(np.asarray(compact.rows.rows))  # pyright: ignore[reportAttributeAccessIssue]
        flat = cp.vec(variable, order="C")
        values = cp.real(rows @ flat) if np.iscomplexobj(rows) else rows @ flat
    inequality, equality = np.flatnonzero(compact.inequality), np.flatnonzero(compact.equality)
    targets = np.asarray(compact.targets)
    values: Any = values
    constraints: list[Any] = []
    if len(inequality):
        constraints.append(values[inequality] >= targets[inequality])
    if len(equality):
        constraints.append(values[equality] == targets[equality])
    # The square has the same minimiser as the Frobenius norm and is a quadratic program.
    squared = isinstance(program.norm, Frobenius)
    objective = 0.5 * cp.sum_squares(variable) if squared else program.norm.expression(variable)
    problem = cp.Problem(cp.Minimize(objective), constraints)
    settings = {**CLARABEL, **options} if solver == "CLARABEL" else options
    try:
        with warnings.catch_warnings():
            # CVXPY warns of what its status says; the status is in the result.
            warnings.filterwarnings("ignore", message=".*may be inaccurate.*")
            problem.solve(solver=solver, **settings)
        status = problem.status
    except cp.SolverError:
        status = "solver_error"
    steps = jnp.asarray(getattr(problem.solver_stats, "num_iters", None) or 0)

    weights = np.zeros(len(targets))
    if variable.value is None or any(item.dual_value is None for item in constraints):
        code = {
            "infeasible": ProgramResult.infeasible,
            "user_limit": ProgramResult.budget_spent,
        }.get(status, ProgramResult.failed)
        nothing = program.expand(jnp.asarray(weights), compact.slots)
        return Solution(zero, nothing, Certificate.none(), Code(code, ProgramResult), steps)
    # CVXPY's Lagrangian adds ν(lhs − rhs) for equalities: its multipliers have the opposite sign of ours.
    present = [(sign, index) for sign, index in ((1.0, inequality), (-1.0, equality)) if len(index)]
    for item, (sign, index) in zip(constraints, present, strict=True):
        weights[index] = sign * np.real(item.dual_value)
    dual = program.expand(jnp.asarray(weights), compact.slots)
    primal = jnp.asarray(np.asarray(variable.value))
    certificate = bounds_of(program, primal, dual, CertificateSource.program)
    believed = status == "optimal" and float(certificate.duality_gap) <= BELIEVED_GAP
    code = ProgramResult.optimal if believed else ProgramResult.inaccurate
    if status == "user_limit":
        code = ProgramResult.budget_spent
    elif status not in ("optimal", "optimal_inaccurate"):
        code = ProgramResult.failed
    margin = float(jnp.min(program.margins(primal), initial=jnp.inf))
    scale = margin if program.conic and 0 < margin < np.inf else 1.0
    size = float(program.norm.dual(program.adjoint(dual)))
    return Solution(primal / scale, dual / (size if size > 0 else 1.0), certificate, Code(code, ProgramResult), steps)
