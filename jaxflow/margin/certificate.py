r"""Certificates: bounds on a program's optimum that hold for any points, from a solver or a flow."""

import enum
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int

from jaxflow._core import AbstractPrinted, Code, as_array, check_name, positive_or_one, require
from jaxflow.margin.program import AbstractProgram

# ‖Σλ_k A_k‖ relative to Σλ_k · max‖A_k‖ below which a dual ray proves infeasibility in float64: three orders
# above the rounding of that sum; in other precisions the same multiple of machine epsilon.
FARKAS_MULTIPLE = 500.0


class CertificateSource(enum.IntEnum):
    """Where the primal and dual point of a certificate come from."""

    none = 0
    flow = 1
    program = 2


class ProgramResult(enum.IntEnum):
    """How a program ended.

    `optimal`: the certified relative gap is below the tolerance. `inaccurate`: a certified answer with a
    larger gap. `infeasible`: a Farkas certificate was found and checked. `budget_spent`: the iterations ran
    out. `failed`: no answer (NaN data, numerical failure). `stationary`: a KKT point of a program that is not
    convex, with no claim that it is the global minimum.
    """

    not_run = 0
    optimal = 1
    inaccurate = 2
    infeasible = 3
    budget_spent = 4
    failed = 5
    stationary = 6


class Certificate(AbstractPrinted):
    r"""What a primal direction V and multipliers λ prove about $\min N(V)$ s.t. $\langle A_k,V\rangle\ge1$.

    - `primal_value`: $N(V)/\mu$ with $\mu=\min_k\langle A_k,V\rangle$, an upper bound (+inf if $\mu\le0$).
    - `dual_value`: $\sum\lambda_k\,/\,N^*(\sum\lambda_kA_k)$, a lower bound.
    - `duality_gap`: `primal_value / dual_value − 1`, +inf where either bound is missing.
    - `feasibility`: the worst constraint violation after scaling to margin one (equalities included).
    - `stationarity`: $1-\langle V,A^*\lambda\rangle/(N(V)\,N^*(A^*\lambda))$, zero where $A^*\lambda$ is a
      multiple of a subgradient of N at V; for programs that are not convex the residual of their own KKT
      condition.
    - `source`: `none`, `flow` or `program`.
    - `farkas`: $N^*(\sum\lambda_kA_k)/(\sum\lambda_k\max_k\|A_k\|_F)$; zero (to rounding) is Gordan's proof
      that no V has positive margins.
    """

    primal_value: Float[Array, ""]
    dual_value: Float[Array, ""]
    duality_gap: Float[Array, ""]
    feasibility: Float[Array, ""]
    stationarity: Float[Array, ""]
    source: Code
    farkas: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=float("inf"))

    @classmethod
    def none(cls) -> "Certificate":
        """No certificate: bounds 0 and +inf."""
        inf = jnp.asarray(jnp.inf)
        zero = jnp.zeros(())
        return cls(inf, zero, inf, inf, inf, Code(CertificateSource.none, CertificateSource), inf)

    @property
    def proves_infeasible(self) -> Bool[Array, "..."]:
        """Whether the multipliers are a Farkas certificate to rounding accuracy."""
        return self.farkas <= FARKAS_MULTIPLE * jnp.finfo(self.farkas.dtype).eps


class Solution(AbstractPrinted):
    """A program's answer with its certificate.

    `primal` is scaled to margin one and zero where there is none; `dual` is scaled to $N^*(A^*\\lambda)=1$,
    or, for an infeasible program, is the Farkas ray with sum one. Read `result` before the numbers.
    """

    primal: Inexact[Array, "..."]
    dual: Float[Array, "..."]
    certificate: Certificate
    result: Code
    iterations: Int[Array, ""]


def _unit(x: Inexact[Array, "..."]) -> Inexact[Array, "..."]:
    """x divided by its largest entry, so that squares neither overflow nor underflow."""
    return x / positive_or_one(jnp.max(jnp.abs(x), initial=0.0))


def bounds_of(program: AbstractProgram, primal: Any, dual: Any, source: Any = "program") -> Certificate:
    """`jaxflow.margin.certify` of a primal and a dual point."""
    named = isinstance(source, CertificateSource)
    code = source if named else CertificateSource[check_name("source", source, CertificateSource.__members__)]
    primal, dual = as_array("primal", primal, mixed=True), as_array("dual", dual)
    zero = program.primal_zero
    real = not jnp.iscomplexobj(primal) or jnp.iscomplexobj(zero)
    require(real, "primal", f"expected real numbers, got {primal.dtype}")
    require(primal.shape == zero.shape, "primal", f"expected shape {zero.shape}, got {primal.shape}")
    require(dual.shape == program.active.shape, "dual", f"expected shape {program.active.shape}, got {dual.shape}")
    return _certify(program, primal, dual, code)


@eqx.filter_jit
def _certify(program: AbstractProgram, primal: Array, dual: Array, code: Any) -> Certificate:
    """As `bounds_of`: traced once for the places of a program that want it."""
    active, equal = program.active, program.equal
    direction = _unit(jnp.where(jnp.isfinite(primal), primal, 0.0)) if program.conic else primal
    weights = jnp.where(active, jnp.maximum(dual, 0.0), jnp.where(equal, dual, 0.0))
    weights = _unit(jnp.where(jnp.isfinite(weights), weights, 0.0))
    values, combined = program.values(direction), program.adjoint(weights)
    finite = (
        jnp.all(jnp.isfinite(primal))
        & jnp.all(jnp.isfinite(dual) | ~(active | equal))
        & jnp.all(jnp.isfinite(values))
        & jnp.all(jnp.isfinite(combined))
    )
    # LAPACK may hang on NaN: nothing that is not finite reaches a singular value decomposition.
    direction = jnp.where(finite, direction, 0.0)
    combined = jnp.where(finite, combined, 0.0)
    size, dual_size, stationarity = program.norm.measure(direction, combined)

    smallest = jnp.min(jnp.where(active, values, jnp.inf))
    bounded = jnp.any(active)
    margin = jnp.where(bounded & program.conic, smallest, 1.0)
    residual = jnp.abs(values / positive_or_one(margin) - program.targets)
    shortfall = jnp.maximum(1.0 - values / positive_or_one(margin), 0.0)
    violation = jnp.where(equal, residual, jnp.where(active, shortfall, 0.0))
    worst = jnp.max(violation, initial=0.0)
    # An interpolation cannot be scaled to feasibility: half the digits of its targets must be met.
    largest = jnp.max(jnp.abs(program.targets), initial=0.0)
    met = program.conic | (worst <= jnp.sqrt(jnp.finfo(size.dtype).eps) * largest)
    has_primal = finite & (margin > 0) & met
    primal_value = jnp.where(has_primal, size / positive_or_one(margin), jnp.inf)
    pull = jnp.where(finite, jnp.sum(program.targets * weights), 0.0)
    # An exact ray (zero denominator) proves any bound.
    ray_value = jnp.where(pull > 0, jnp.inf, 0.0)
    dual_value = jnp.where(dual_size > 0, jnp.maximum(pull, 0.0) / positive_or_one(dual_size), ray_value)
    has_both = has_primal & (dual_value > 0) & jnp.isfinite(dual_value)
    gap = jnp.where(has_both, primal_value / positive_or_one(dual_value) - 1.0, jnp.inf)

    unconstrained = finite & ~bounded & ~jnp.any(program.targets != 0)
    largest_row = jnp.max(jnp.where(active | equal, program.row_sizes(), 0.0), initial=0.0)
    # A proof needs weight on an inequality (or a right-hand side), not on homogeneous equalities alone. Rows
    # that vanish altogether (a token equal to the selected one) are a proof by themselves.
    total = jnp.where(finite & (pull > 0), jnp.sum(jnp.abs(weights)) * largest_row, 0.0)
    vanished = jnp.where(finite & (pull > 0) & (dual_size == 0), 0.0, jnp.inf)
    return Certificate(
        primal_value=jnp.where(unconstrained, 0.0, primal_value),
        dual_value=jnp.where(unconstrained, 0.0, dual_value),
        duality_gap=jnp.where(unconstrained, 0.0, gap),
        feasibility=jnp.where(finite & (margin > 0), worst, jnp.inf),
        stationarity=jnp.where(unconstrained, 0.0, jnp.where(finite, stationarity, jnp.inf)),
        source=code if isinstance(code, Code) else Code(code, CertificateSource),
        farkas=jnp.where(total > 0, dual_size / positive_or_one(total), vanished),
    )
