"""`solve`: one entry for all built-in methods."""

import equinox as eqx

from jaxflow._core import require
from jaxflow.margin.certificate import Solution
from jaxflow.margin.frobenius import solve_frobenius
from jaxflow.margin.interpolation import solve_interpolation
from jaxflow.margin.l1 import solve_l1
from jaxflow.margin.lp import solve_lp
from jaxflow.margin.norms import L1, Frobenius, Lp, Nuclear
from jaxflow.margin.nuclear import solve_nuclear
from jaxflow.margin.nuclear_rank import solve_nuclear_rank
from jaxflow.margin.program import AbstractProgram


def solve(
    program: AbstractProgram,
    *,
    tolerance: float | None = None,
    max_steps: int | None = None,
    starts: int = 8,
) -> Solution:
    r"""Solves one program; `jax.vmap(solve)` solves a batch, in which no member disturbs another.

    | norm | method |
    |---|---|
    | Frobenius, ℓ2 | min-norm point of the constraint elements (`min_norm_point`), direct for interpolation |
    | nuclear | interior point on a reduced dual, Newton at fixed rank (`nuclear`) |
    | nuclear with a rank bound | the convex solution where it satisfies the bound, else stationary points |
    | ℓ1, real or complex | interior point on the dual, Newton on the support (`l1`) |
    | ℓp, p < 1 | stationary points by reweighted ℓ1 (`lp`) |

    **Arguments:**

    - `program`: from `attention_svm`, `max_margin` or `minimum_norm`.
    - `tolerance`: certified relative gap (stationarity residual where not convex) that counts as solved;
      None: 1e-12 for Frobenius, 1e-10 for nuclear and ℓ1 in float64, the same multiples of epsilon in
      float32.
    - `max_steps`: budget of interior-point iterations.
    - `starts`: number of starts, for programs that are not convex.

    **Returns:** a `Solution`. Look at `.result` first: `optimal`, `inaccurate`, `infeasible` (then `.dual`
    is a Farkas ray and `.certificate.proves_infeasible`), `budget_spent`, `failed` or `stationary`.

    **Raises:** `ValueError` naming the argument for a norm without a built-in method.
    """
    require(isinstance(program, AbstractProgram), "program", f"expected a program, got {type(program).__name__}")
    require(tolerance is None or tolerance > 0, "tolerance", f"expected a positive number, got {tolerance}")
    require(max_steps is None or max_steps >= 1, "max_steps", f"expected at least 1, got {max_steps}")
    require(starts >= 1, "starts", f"expected at least 1, got {starts}")
    return _solve(program, tolerance, max_steps, starts)


@eqx.filter_jit
def _solve(program: AbstractProgram, tolerance: float | None, max_steps: int | None, starts: int) -> Solution:
    norm = program.norm
    if isinstance(norm, Frobenius):
        method = solve_frobenius if program.conic else solve_interpolation
        return method(program, tolerance, max_steps)
    if isinstance(norm, Nuclear) and norm.rank is None:
        return solve_nuclear(program, tolerance, max_steps)
    if isinstance(norm, Nuclear) and norm.rank is not None:
        return solve_nuclear_rank(program, norm.rank, tolerance, max_steps, starts)
    if isinstance(norm, L1):
        return solve_l1(program, tolerance, max_steps)
    if isinstance(norm, Lp):
        return solve_lp(program, norm.p, tolerance, max_steps, starts)
    raise ValueError(f"norm: no built-in method for {type(norm).__name__}; see jf.margin.solve_cvxpy")
