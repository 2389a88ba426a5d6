r"""The KKT residuals of the parameter-space margin problem at any direction, with multipliers that make them small.

With q scaled to $\min_kq_k(\psi)=1$ and $h_k\in\partial q_k(\psi)$ the problem linearised at ψ is
$\min_v\frac12\|v\|^2$ s.t. $\langle h_k,v\rangle\ge1-q_k+\langle h_k,\psi\rangle$. Its duality gap between ψ and
$\lambda\ge0$ is $\frac12\|\psi-\sum_k\lambda_kh_k\|^2+\sum_k\lambda_k(q_k-1)$, which is zero at KKT points alone: its
solution gives multipliers that make both residuals small, and no tolerance decides which margins are active.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import checked, compiled_once, positive_or_one, require, tree_where
from jaxflow._core.kinks import gated
from jaxflow.flow import HardMarginState
from jaxflow.limits.kantorovich import flat
from jaxflow.limits.model_direction import Margins, ModelStaged, declared_degree, degree_of, kkt_point, margins_of
from jaxflow.limits.model_facts import KKTPoint, is_homogeneous
from jaxflow.limits.own_model import wrapped
from jaxflow.margin import MaxMarginProgram, solve
from jaxflow.margin.norms import as_norm
from jaxflow.risk import EmpiricalRisk

# Choices of gates that share a problem where the direction is on kinks. Three gave 1e-12 for limits on up to six kinks.
ROUNDS = 6


@checked(nonnegative=["near"], most={"near": 1.0})
def kkt_residual(risk: EmpiricalRisk, direction: Any, model: Any = None, *, near: float = 1e-6) -> KKTPoint:
    r"""The KKT residuals of $\min\frac12\|\theta\|^2$ s.t. $q_k(\theta)\ge1$ at any direction.

    `residual` and `complementarity` are ε, relative to the norm, and δ, relative to the sum of multipliers, of the
    (ε, δ)-KKT points of Lyu and Li (2020), Definition C.4. The margins q may be those of any model that is homogeneous
    in its trained parameters; their multipliers are computed here.

    **Arguments:**

    - `risk`: data and a loss of the margin; the residuals depend on its margins alone.
    - `direction`: a model of any norm, say the last one of a training run; or trained parameters alone, such as
      `limit.direction` of your own model.
    - `model`: in the second case, the model whose trained parameters are replaced.
    - `near`: a kink of the model (of a ReLU on one input, for example) counts as met if its switch is at most this,
      relative to the largest switch. The subdifferential is then that of a point this close, and `kink_distance` of the
      result is that distance.

    **Returns:** a `KKTPoint`. Its residual is an upper bound of the smallest one. It is +inf where a margin is not
    positive, or the margins are not homogeneous: then there is no such problem.

    **Raises:** `ValueError` naming the argument.

    **Example:**

    ```python
    logistic = jf.EmpiricalRisk((linear.inputs, linear.targets), "logistic")
    found = jf.find_limit(logistic, own)
    assert jf.limits.kkt_residual(logistic, found.direction, own).residual < 1e-6
    jf.limits.kkt_residual(logistic, found.trajectory.final.model)  # of the exact flow's last point
    ```
    """
    require(risk.loss.margin and not risk.opaque, "risk", "expected a loss of the margin, with its margins")
    if model is not None:
        risk.check(model)
        same = jax.tree.structure(eqx.filter(direction, eqx.is_array)) == jax.tree.structure(
            eqx.filter(model, risk.filter(model))
        )
        require(same, "direction", "expected the trained parameters of the model, with None for its other leaves")
        direction = eqx.combine(eqx.filter(direction, eqx.is_array), model)
    risk.check(direction)
    return _kkt_residual(*wrapped(risk, direction), near)


@compiled_once
def _kkt_residual(risk: EmpiricalRisk, model: Any, near: float) -> KKTPoint:
    theta, unravel = flat(risk, model)
    margins = margins_of(risk, model, unravel)
    degree, deviation = degree_of(margins, theta, declared_degree(ModelStaged(), model))
    # Margins of a direction of norm one neither overflow nor underflow.
    unit = theta / positive_or_one(jnp.linalg.norm(theta))
    smallest = jnp.min(jnp.where(margins.present, margins.function(unit), jnp.inf), initial=jnp.inf)
    usable = (smallest > 0) & jnp.isfinite(smallest) & is_homogeneous(deviation)
    psi = unit / jnp.where(usable, smallest, 1.0) ** (1.0 / degree)
    found = _with_multipliers(margins, psi, near)
    return replace(found, residual=jnp.where(usable, found.residual, jnp.inf))


def _with_multipliers(margins: Margins, psi: Float[Array, " p"], near: float) -> KKTPoint:
    """The conditions at ψ with the multipliers of the linearised problem, and gates of the kinks that are met.

    The subdifferential is the convex hull of gradients at gates of zero and one. The most violated of these at the
    solution v joins the constraints of the problem, round by round.
    """
    present = margins.present
    q, switches, own, _ = gated(margins.function, psi)
    met = jnp.abs(switches) <= near * jnp.max(jnp.abs(switches), initial=0.0, where=jnp.isfinite(switches))
    rounds = ROUNDS if own.size else 1

    def values(psi: Array, gates: Array, offsets: Array) -> Array:
        return jnp.where(present, gated(margins.function, psi, gates, offsets).value, 0.0)

    nothing = jnp.zeros_like(own)

    def body(carry: tuple, at: Array) -> tuple:
        gates, rows, targets, best = carry
        new = jax.jacrev(values)(psi, gates[at], nothing)
        rows, targets = rows.at[at].set(new), targets.at[at].set(1.0 - q + new @ psi)
        # Shapes are fixed. Later rounds and margins that do not count are filled with twice the row of the smallest
        # margin, which is never active.
        filled = (jnp.arange(rounds) <= at)[:, None] & present[None] & (targets > 0)
        scaled = rows / jnp.where(filled, targets, 1.0)[..., None]
        spare = 2.0 * scaled[0, jnp.argmin(jnp.where(filled[0], q, jnp.inf))]
        inputs = jnp.where(filled[..., None], scaled, spare[None, None]).reshape(-1, psi.size)
        ones = jnp.ones(len(inputs), psi.dtype)
        program = MaxMarginProgram(norm=as_norm("l2"), inputs=inputs, labels=ones, transform=None)
        solution = solve(program)
        # Of dual points on one ray the best has the optimum's norm; solutions are scaled to the norm one.
        pushes = solution.dual * solution.certificate.primal_value
        lam = jnp.where(filled, pushes.reshape(filled.shape) / jnp.where(filled, targets, 1.0), 0.0)
        worth = jax.vmap(lambda g, each: jax.grad(lambda o: jnp.dot(each, values(psi, g, o)))(nothing))(gates[:-1], lam)
        total = jnp.sum(jnp.abs(worth), axis=0)
        mean = jnp.sum(jnp.abs(worth) * gates[:-1], axis=0) / positive_or_one(total)
        mean = jnp.where(met & (total > 0), mean, own)
        here = kkt_point(margins, HardMarginState(psi, jnp.sum(lam, axis=0), mean, nothing > 0))
        best = tree_where(here.residual < best.residual, here, best)

        def pushed(gates: Array) -> Array:
            return jnp.sum(jax.jvp(lambda x: values(x, gates, nothing), (psi,), (solution.primal,))[1])

        # Between zero and one: at these a gate leaves one piece alone, without a derivative by the gate.
        lowest = jnp.where(met, (jax.grad(pushed)(jnp.where(met, 0.5, own)) < 0).astype(own.dtype), own)
        return (gates.at[at + 1].set(lowest), rows, targets, best), None

    zero = jnp.zeros_like(psi[0])
    blank = KKTPoint(zero + jnp.inf, zero + jnp.nan, jnp.zeros_like(q), own, nothing > 0, zero)
    begun = (
        jnp.zeros((rounds + 1, own.size), own.dtype).at[0].set(own),
        jnp.zeros((rounds, q.size, psi.size), psi.dtype),
        jnp.zeros((rounds, q.size), psi.dtype),
        blank,
    )
    return jax.lax.scan(body, begun, jnp.arange(rounds))[0][3]
