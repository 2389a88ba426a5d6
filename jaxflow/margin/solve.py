"""`solve`: one entry for all built-in methods."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxflow._core import checked, require
from jaxflow.margin.balls import solve_ball
from jaxflow.margin.certificate import Certificate, Solution, bounds_of
from jaxflow.margin.conclude import DIRECT_GAP, INTERIOR_GAP, STATIONARY_RESIDUAL, default_tolerance, judge
from jaxflow.margin.l1 import solve_l1
from jaxflow.margin.lp import solve_lp
from jaxflow.margin.min_norm_point import min_norm_point
from jaxflow.margin.norms import L1, Frobenius, Linf, Lp, Nuclear, Schatten, Spectral
from jaxflow.margin.nuclear import solve_nuclear
from jaxflow.margin.nuclear_rank import solve_nuclear_rank
from jaxflow.margin.power import solve_power
from jaxflow.margin.program import AbstractProgram, DenseRows


@checked(least={"max_steps": 1, "starts": 1}, positive=["tolerance"])
def solve(
    program: AbstractProgram,
    *,
    tolerance: float | None = None,
    max_steps: int | None = None,
    starts: int = 8,
    solver: Callable[[AbstractProgram], tuple[Any, Any]] | None = None,
) -> Solution:
    r"""Solves one program; `jax.vmap(solve)` solves a batch, in which no member affects another.

    | norm | method |
    |---|---|
    | Frobenius, ℓ2 | min-norm point of the constraint elements (`min_norm_point`), direct for interpolation |
    | nuclear, of attention | interior point on a reduced dual, Newton at fixed rank (`nuclear`) |
    | nuclear, of any matrices | interior point on the dual (`balls`) |
    | ℓ∞, spectral | interior point on the program itself (`balls`) |
    | nuclear with a rank bound | the convex solution where it satisfies the bound, else stationary points |
    | ℓ1, real | simplex method on the dual (`l1_vertex`); where that proves nothing, the method of the next row |
    | ℓ1, complex | interior point on the dual, Newton on the support (`l1`) |
    | ℓp, Schatten, p > 1 | interior point on the program for p ≥ 2, on the dual for p < 2 (`power`) |
    | ℓp, p < 1 | stationary points by reweighted ℓ1 (`lp`) |

    **Arguments:**

    - `program`: from `attention_svm`, `max_margin` or `minimum_norm`.
    - `tolerance`: certified relative gap (stationarity residual where not convex) that counts as solved;
      None: 1e-12 for Frobenius, 1e-10 for the others that are convex in float64, the same multiples of epsilon in
      float32.
    - `max_steps`: budget of interior-point iterations.
    - `starts`: number of starts, for programs that are not convex.
    - `solver`: a method of your own, a function of the program that returns a primal and a dual point of any scale;
      None: the method of the norm (`AbstractNorm.solver`), or the built-in one where the norm has none. Its answer is
      certified from the constraints alone: a wrong one ends as `inaccurate` or `failed`.

    **Returns:** a `Solution`. Look at `.result` first: `optimal`, `inaccurate`, `infeasible` (then `.dual`
    is a Farkas ray and `.certificate.proves_infeasible`), `budget_spent`, `failed` or `stationary`.

    **Raises:** `ValueError` naming the argument for a norm without a method, or points of other shapes.

    **Example:**

    ```python
    solution = jf.margin.solve(jf.margin.max_margin(linear.inputs, linear.targets))
    assert solution.result == "optimal"
    ```
    """
    own = program.norm.solver() if solver is None else solver
    if own is not None:
        return _concluded(program, *own(program), tolerance)
    return _solve(program, tolerance, max_steps, starts)


@eqx.filter_jit
def _concluded(program: AbstractProgram, primal: Any, dual: Any, tolerance: float | None) -> Solution:
    primal, dual, zero = jnp.asarray(primal), jnp.asarray(dual), program.primal_zero
    require(primal.shape == zero.shape, "solver", f"expected a primal point {zero.shape}, got {primal.shape}")
    require(dual.shape == program.active.shape, "solver", f"expected weights {program.active.shape}, got {dual.shape}")
    compact = program.compact()
    goal = default_tolerance(zero.dtype, INTERIOR_GAP) if tolerance is None else tolerance
    none = jnp.zeros((), int)
    points = [(primal, dual.reshape(-1)[compact.slots])]
    return judge(program, compact, points, steps=none, spent=none > 0, tolerance=goal)


@eqx.filter_jit
def _solve(program: AbstractProgram, tolerance: float | None, max_steps: int | None, starts: int) -> Solution:
    norm, compact = program.norm, program.compact()
    found = partial(judge, program, compact)

    def within(multiple: float) -> float:
        return default_tolerance(compact.targets.dtype, multiple) if tolerance is None else tolerance

    if isinstance(norm, Frobenius):
        if not program.conic:
            weights, consistent = compact.least_norm()
            primal = jnp.where(consistent, 1.0, 0.0) * compact.rows.combine(weights)
            none = jnp.zeros((), int)
            return found([(primal, weights)], steps=none, spent=none > 0, tolerance=within(DIRECT_GAP))
        # W = Σλ_k A_k / μ, λ the min-norm point, μ the least margin.
        most = 40 if max_steps is None else max_steps
        point = min_norm_point(compact, max_steps=most)
        spent = ~point.converged & (point.steps >= most)
        return found([(point.primal, point.weights)], steps=point.steps, spent=spent, tolerance=within(DIRECT_GAP))
    if isinstance(norm, Linf | Spectral) or (isinstance(norm, Nuclear) and isinstance(compact.rows, DenseRows)):
        return solve_ball(program, compact, within(INTERIOR_GAP), max_steps)
    if isinstance(norm, Nuclear) and norm.rank is None:
        return solve_nuclear(program, compact, within(INTERIOR_GAP), max_steps)
    if isinstance(norm, Nuclear) and norm.rank is not None:
        return solve_nuclear_rank(program, compact, norm.rank, within(STATIONARY_RESIDUAL), max_steps, starts)
    if isinstance(norm, L1):
        return solve_l1(program, compact, within(INTERIOR_GAP), max_steps)
    if isinstance(norm, Schatten) or (isinstance(norm, Lp) and norm.convex):
        return solve_power(program, compact, norm, within(INTERIOR_GAP), max_steps)
    if isinstance(norm, Lp):
        return solve_lp(program, compact, norm.p, within(STATIONARY_RESIDUAL), max_steps, starts)
    raise ValueError(
        f"norm: no built-in method for {type(norm).__name__}; give it a `solver`, or see jf.margin.solve_cvxpy"
    )


@checked()
def certify(program: AbstractProgram, primal: Any, dual: Any = None, source: Any = "program") -> Certificate:
    r"""Bounds on the optimum from any direction and any nonnegative weights, of any scale.

    No solver is trusted: every number is computed from the program's constraints. Negative weights of
    inequalities count as zero. For equalities the bounds hold up to `feasibility`.

    **Arguments:**

    - `program`: from `attention_svm`, `max_margin` or `minimum_norm`.
    - `primal`: in the program's primal shape. For a flow, give its velocity, which converges exponentially faster than
      the weights.
    - `dual`: in the shape of `program.active`. For a flow, give its gradient multipliers, clipped at zero; for sets of
      selected tokens also the weights with which the gradient pushes selected tokens (any sign). None: the program is
      solved for it.
    - `source`: `"program"`, `"flow"`, `"none"` or a `CertificateSource`.

    **Returns:** a `Certificate`. A missing bound (non-positive margin, zero weights, NaN input) gives
    `duality_gap = +inf`, never NaN. A program without constraints has optimum zero: gap 0.

    **Example:**

    ```python
    program = jf.margin.attention_svm(data, limit.selection)
    solution = jf.margin.solve(program)
    jf.margin.certify(program, 7 * solution.primal, solution.dual)  # of any scale
    jf.margin.certify(program, limit.direction)  # how far a direction is from the optimum
    ```
    """
    if dual is None:
        dual = solve(program).dual
    return bounds_of(program, primal, dual, source)
