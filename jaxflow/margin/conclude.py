"""From a solver's raw primal and dual points to a certified `Solution`."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int

from jaxflow._core import Code
from jaxflow.margin.certificate import Certificate, ProgramResult, Solution, bounds_of
from jaxflow.margin.norms import L1, Linf
from jaxflow.margin.program import AbstractProgram, Compact, DenseRows

# An answer whose certified gap is worse than this is called a failure rather than inaccurate.
USEFUL_GAP = 1e-2
# Rounding errors of double precision that count as solved by default: the certified gap of direct methods (1e-12) and
# of interior points (1e-10), and the residual of the KKT condition, relative to its terms, of a program that is not
# convex (2e-8).
DIRECT_GAP, INTERIOR_GAP, STATIONARY_RESIDUAL = 4.5e3, 4.5e5, 1e8


def default_tolerance(dtype: jnp.dtype, multiple: float) -> float:
    """A relative gap of `multiple` rounding errors of double precision (1e-12 for 4.5e3); in single precision, which
    has half of the digits, the root of that: as many of *its* rounding errors would certify nothing."""
    wide = multiple * float(jnp.finfo(jnp.float64).eps)
    return wide if jnp.finfo(dtype).eps < 1e-12 else wide**0.5


class Candidate(eqx.Module):
    """A primal and a dual point in the shapes of the program, and what they prove."""

    primal: Inexact[Array, "..."]
    dual: Float[Array, "..."]
    certificate: Certificate


def closest(
    program: AbstractProgram, compact: Compact, candidates: list[tuple[Inexact[Array, "..."], Float[Array, " m"]]]
) -> Candidate:
    """Of (primal, weights) candidates, primal points flat or not, the one with the smallest certified gap, the first
    among equals, so that a Farkas ray must come first."""
    points = [(_shaped(program, compact, one), program.expand(weights, compact.slots)) for one, weights in candidates]
    if len(points) == 1:
        return Candidate(points[0][0], points[0][1], bounds_of(program, *points[0]))
    primals, duals = (jnp.stack(parts) for parts in zip(*points, strict=True))
    certificates = jax.vmap(lambda primal, dual: bounds_of(program, primal, dual))(primals, duals)
    # Broken equalities make a gap look small: they count as much.
    best = jnp.argmin(jnp.abs(certificates.duality_gap) + certificates.feasibility)
    return jax.tree.map(lambda part: part[best], Candidate(primals, duals, certificates))


def _shaped(program: AbstractProgram, compact: Compact, primal: Inexact[Array, "..."]) -> Inexact[Array, "..."]:
    """In the program's shape; half the sum with its transpose where all elements are symmetric matrices: that meets
    the same constraints, and none of these norms is larger."""
    shape, rows = program.primal_zero.shape, compact.rows
    primal = primal.reshape(shape)
    square = len(shape) == 2 and shape[0] == shape[1]
    norm = program.norm
    if not square or not isinstance(rows, DenseRows) or not (norm.of_matrices or isinstance(norm, L1 | Linf)):
        return primal
    elements = rows.rows.reshape(-1, *shape)
    symmetric = jnp.all(elements == elements.transpose(0, 2, 1))
    return jnp.where(symmetric, 0.5 * (primal + primal.T), primal)


def judge(
    program: AbstractProgram,
    compact: Compact,
    candidates: Candidate | list[tuple[Inexact[Array, "..."], Float[Array, " m"]]],
    *,
    steps: Int[Array, ""],
    spent: Bool[Array, ""],
    tolerance: float,
) -> Solution:
    """How the program ended, and the candidate, of several (primal, weights) the `closest`, in the scale of a
    `Solution`."""
    candidate = candidates if isinstance(candidates, Candidate) else closest(program, compact, candidates)
    certificate = candidate.certificate
    gap = certificate.duality_gap
    code = jnp.where(spent, ProgramResult.budget_spent.value, ProgramResult.failed.value)
    code = jnp.where((gap <= USEFUL_GAP) & ~spent, ProgramResult.inaccurate.value, code)
    code = jnp.where(certificate.proves_infeasible, ProgramResult.infeasible.value, code)
    # Rounding may turn the gap of an exact answer slightly negative; a large negative gap is a broken answer.
    # Equalities hold to half of the digits at margin one.
    exact = (jnp.abs(gap) <= tolerance) & (certificate.feasibility <= jnp.sqrt(jnp.finfo(gap.dtype).eps))
    code = jnp.where(exact, ProgramResult.optimal.value, code)
    return _solution(program, compact, candidate, code, steps)


def conclude_stationary(
    program: AbstractProgram,
    compact: Compact,
    primals: Inexact[Array, "starts ..."],
    weights: Float[Array, "starts m"],
    *,
    trivial: Bool[Array, ""],
    steps: Int[Array, ""],
    tolerance: float,
) -> Solution:
    """The best of several starts on a program that is not convex.

    A start whose duality gap closes is `optimal`; else the stationary point of least objective is
    `stationary`.
    """
    primals = primals.reshape(-1, *program.primal_zero.shape)
    duals = jax.vmap(lambda part: program.expand(part, compact.slots))(weights)
    certificates = jax.vmap(lambda primal, dual: bounds_of(program, primal, dual))(primals, duals)
    stationary = certificates.stationarity <= tolerance
    value = certificates.primal_value
    closed = jnp.abs(certificates.duality_gap) <= default_tolerance(value.dtype, INTERIOR_GAP)
    ordered = jnp.where(closed, -jnp.inf, jnp.where(stationary, value, jnp.inf))
    # Without a stationary point: the feasible start that is closest to one.
    nearest = jnp.argmin(jnp.where(jnp.isfinite(value), certificates.stationarity, jnp.inf))
    best = jnp.where(jnp.any(ordered < jnp.inf), jnp.argmin(ordered), nearest)
    certificate: Certificate = jax.tree.map(lambda part: part[best], certificates)
    code = jnp.where(jnp.isfinite(value[best]), ProgramResult.inaccurate.value, ProgramResult.failed.value)
    code = jnp.where(stationary[best] & jnp.isfinite(value[best]), ProgramResult.stationary.value, code)
    code = jnp.where(certificate.proves_infeasible, ProgramResult.infeasible.value, code)
    code = jnp.where(closed[best] | trivial, ProgramResult.optimal.value, code)
    return _solution(program, compact, Candidate(primals[best], duals[best], certificate), code, steps)


def _solution(
    program: AbstractProgram, compact: Compact, candidate: Candidate, code: Array, steps: Int[Array, ""]
) -> Solution:
    """In the scale that `Solution` promises: margin one, N*(A*λ) = 1; a Farkas ray has Σbλ = 1."""
    primal, dual, certificate = candidate.primal, candidate.dual, candidate.certificate
    margin = jnp.min(program.margins(primal), initial=jnp.inf)
    if program.conic:
        usable = compact.finite & (margin > 0) & jnp.isfinite(margin)
        primal = jnp.where(usable, primal / jnp.where(usable, margin, 1.0), jnp.zeros_like(primal))
    pull = jnp.sum(program.targets * dual)
    bound = certificate.dual_value
    is_ray = certificate.proves_infeasible | ~(bound > 0) | ~jnp.isfinite(bound)
    divisor = jnp.where(is_ray, pull, pull / jnp.where(is_ray, 1.0, bound))
    usable = compact.finite & (divisor > 0) & jnp.isfinite(divisor)
    dual = jnp.where(usable, dual / jnp.where(usable, divisor, 1.0), jnp.zeros_like(dual))
    code = jnp.where(compact.finite, code, ProgramResult.failed.value)
    return Solution(primal, dual, certificate, Code(code, ProgramResult), steps)
