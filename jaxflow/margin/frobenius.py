r"""Programs in the Frobenius (ℓ2) norm: the min-norm point solves them exactly."""

from jaxflow.margin.certificate import Solution
from jaxflow.margin.conclude import conclude, default_tolerance
from jaxflow.margin.min_norm_point import min_norm_point
from jaxflow.margin.program import AbstractProgram


def solve_frobenius(program: AbstractProgram, tolerance: float | None, max_steps: int | None) -> Solution:
    r"""$\min\|W\|_F$ of a margin program: $W=\sum\lambda_kA_k/\mu$, λ the min-norm point, μ the least margin.

    Method and source: see `min_norm_point`. Default tolerance: gap 1e-12 in float64.
    """
    compact = program.compact()
    tolerance = default_tolerance(compact.targets.dtype, 4.5e3) if tolerance is None else tolerance
    max_steps = 40 if max_steps is None else max_steps
    point = min_norm_point(compact.rows, compact.inequality, compact.equality, max_steps=max_steps)
    return conclude(
        program,
        compact,
        [(point.primal, point.weights)],
        steps=point.steps,
        spent=~point.converged & (point.steps >= max_steps),
        tolerance=tolerance,
    )
