r"""Programs in ℓ_p with p = 2/L < 1 (networks of depth L > 2): stationary points, several starts.

$$\min_\rho\|\rho\|_p\quad\text{s.t. the constraints},\qquad
A^*\lambda\propto|\rho_j|^{p-1}e^{i\arg\rho_j}\ \text{ where }\rho_j\ne0,\quad\lambda\ge0\text{
complementary}$$

The objective is concave on each orthant, so that there are many stationary points and no certificate that one
is global. Method: majorisation by a weighted ℓ1 program, $w_j=(|\rho_j|^2+\epsilon^2)^{(p-1)/2}$ with ε
falling (Candès, Wakin, Boyd 2008; Chartrand, Yin 2008), each solved to rounding; every start ends in a
stationary point, the least objective is returned. The first start is the ℓ1 solution, the others use random
weights.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxflow._core import positive_or_one
from jaxflow.margin.certificate import Solution
from jaxflow.margin.conclude import conclude_stationary
from jaxflow.margin.l1 import begin, weighted_l1
from jaxflow.margin.program import AbstractProgram, Compact, DenseRows

# ε falls from the size of ρ to 1e-6 of it; the last rounds fix the vertex and its multipliers.
SMOOTHING = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-8, 1e-8)
# Spread of the random starts: weights e^(2·normal) visit vertices far from the ℓ1 solution.
START_SPREAD = 2.0


def solve_lp(
    program: AbstractProgram, compact: Compact, p: float, tolerance: float, max_steps: int | None, starts: int
) -> Solution:
    """The best stationary point found from `starts` starts; `result` is `stationary`.

    `certificate.stationarity` is the KKT residual, and the reason for the result; the duality gap is that of
    the ℓ1 relaxation, a valid bound that is not tight. (Where it closes nevertheless the point is `optimal`.)
    """
    assert isinstance(compact.rows, DenseRows)
    rows, dtype = compact.rows.rows, compact.targets.dtype
    max_steps = 50 if max_steps is None else max_steps
    start = begin(program, compact)
    skip = start.infeasible | start.trivial

    def solve_weighted(cost: Float[Array, " d"]) -> tuple[Array, Array, Array]:
        """min Σ cost_j |ρ_j|: the ℓ1 program of ρ·cost."""
        scaled = rows / cost[None, :]
        point, (weights, shares) = weighted_l1(scaled, compact, start, max_steps)
        rho = 2 * shares * (weights @ scaled) / cost
        return jnp.where(skip, jnp.zeros_like(rho), rho), jnp.where(skip, start.weights, weights), point.steps

    def descend(cost: Float[Array, " d"]) -> tuple[Array, Array, Array]:
        first = solve_weighted(cost)

        def again(state: tuple, smoothing: Array) -> tuple[tuple, None]:
            rho, _, steps = state
            size = jnp.max(jnp.abs(rho))
            unit = jnp.abs(rho) / positive_or_one(size)
            # Bounded costs keep the Schur matrix solvable: off the support cost is at most ε^(p−1).
            rho, weights, more = solve_weighted((unit**2 + smoothing**2) ** ((p - 1) / 2))
            return (rho, weights, steps + more), None

        state, _ = lax.scan(again, first, jnp.asarray(SMOOTHING, dtype))
        return state

    normal = jax.random.normal(jax.random.key(0), (starts, rows.shape[1]), dtype)
    costs = jnp.exp(START_SPREAD * normal.at[0].set(0.0))
    rho, weights, steps = jax.vmap(descend)(costs)
    return conclude_stationary(
        program,
        compact,
        rho,
        weights,
        trivial=start.trivial,
        steps=jnp.sum(steps),
        tolerance=tolerance,
    )
