r"""The flow in log t together with the integrals of its multipliers, $\int_0^tp_{il}\,d\tau$.

The proofs of Sheen et al. (2024) (App. A.3, A.5) speak of such integrals, which a trajectory does not carry.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxflow._core import RESULTS, checked, linalg, tree_where
from jaxflow.papers.table import Table
from jaxflow.risk import EmpiricalRisk

# The 25 values of log t at which everything is measured.
LOG_TIMES = np.concatenate([np.linspace(-4.0, 12.0, 9), np.geomspace(30.0, 1e6, 16)])
# Relative error of a step far out; up to `NEAR` steps are a hundred times as accurate, but for rounding. Kvaerno5's
# stage order leaves about a thousand times that on entries that are still on their way, and two parametrisations are
# held against each other to 1e-8.
RTOL = 5e-12
FINEST = 1e-12
# Up to this log t nothing is stiff, and an explicit method of high order is the cheaper one.
NEAR = 12.0
# Where attention saturates, the multipliers fall like 1/t. At e^40 times that nothing saturates: the flow rests at a
# finite stationary point, whose rates of order t no method follows in log t.
UNSATURATED = 40.0


@checked(positive=["rtol"], rising=["log_times"], plain=["rtol"])
@eqx.filter_jit
def accumulate(
    risk: EmpiricalRisk,
    model: Any,
    log_times: Float[Array, " m"],
    *,
    integrals: bool = True,
    rtol: float = RTOL,
) -> Table:
    r"""Follows $\dot\theta=-\nabla L(\theta)$ and $\dot\Phi=p(\theta)$ in $s=\log(1+t)$.

    The gradient enters as $e^{c+s}G$: the scale c tends to −s, so nothing underflows at any log t. Dopri8 up to
    log t = 12, Kvaerno5 beyond, where the selected margins follow log t at a rate of order one per unit of s.

    **Arguments:** one instance (batch with `jax.vmap`); increasing `log_times`; `integrals`: whether to carry Φ;
    `rtol`: of a step beyond log t = 12.

    **Returns:** at each time, with a leading axis, the `models` and log-scaled `gradients`, whose multipliers are the
    instantaneous ones; `pushes` `(m, n, T)`: $\int_0^tp_{il}d\tau$ with $p=\partial L/\partial a$ (for tokens that are
    not optimal $\phi_{il}=2\int p_{il}$ in the paper's notation, below (19)), None where none were asked for. Read
    `result` of the integration first: `event_occurred` where it was given up, at a point where log t is no clock (a
    finite stationary point, or a late escape from a wrong choice of tokens). What comes after is infinite.
    """
    risk.check(model)
    params, frozen = eqx.partition(model, risk.filter(model))
    ends = jax.nn.softplus(log_times)

    # Attention has multipliers, which the type leaves open.
    def gradient(params: PyTree) -> Any:
        return risk.scaled_gradient(eqx.combine(params, frozen))

    def field(s: Array, state: PyTree, args: Any) -> PyTree:
        scaled = gradient(state[0])
        factor = jnp.exp(scaled.log_scale + s)
        pushed = factor * scaled.multipliers if integrals else None
        return jax.tree.map(lambda g: -factor * g, scaled.gradient), pushed

    near = jnp.asarray(jax.nn.softplus(NEAR))
    zero = jnp.zeros_like(gradient(params).multipliers) if integrals else None  # pyright: ignore

    def lost(s: Array, state: PyTree, args: Any, **kwargs: Any) -> Array:
        return gradient(state[0]).log_scale + s > UNSATURATED

    begin = (jnp.zeros_like(near), near, (params, zero), jnp.minimum(ends, near))
    first = _solve(field, diffrax.Dopri8(), None, *begin, max(0.01 * rtol, FINEST))
    # Rounding leaves a relative error of 1e-16 times the logits in the field, which no iteration can get below; the
    # last step of Newton's method, which converges quadratically, is far more accurate than it is long.
    newton = linalg.newton(rtol=1e-7, atol=1e-10)
    last = jax.tree.map(lambda x: x[-1], first.ys[0])  # pyright: ignore[reportOptionalSubscript]
    end = jnp.maximum(jnp.max(ends), near)
    # Where a margin is far ahead, Newton's method on an exponential takes one iteration for each unit of it.
    solver = diffrax.Kvaerno5(root_finder=newton, root_find_max_steps=30)
    second = _solve(field, solver, diffrax.Event(lost), near, end, last, jnp.maximum(ends, near), rtol)

    early = ends <= near
    ys = tree_where(early, first.ys[1], second.ys[1])  # pyright: ignore[reportOptionalSubscript]
    models = jax.vmap(lambda p: eqx.combine(p, frozen))(ys[0])
    result = diffrax.RESULTS.where(first.result == diffrax.RESULTS.successful, second.result, first.result)
    gradients = jax.vmap(gradient)(ys[0])
    return Table(models=models, pushes=ys[1], gradients=gradients, result=RESULTS.promote(result))


def _solve(
    field: Any,
    solver: Any,
    event: diffrax.Event | None,
    start: Array,
    end: Array,
    state: PyTree,
    times: Array,
    rtol: float,
) -> diffrax.Solution:
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        solver,
        start,
        end,
        None,
        state,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=1e-3 * rtol, pcoeff=0.3, icoeff=0.4),
        saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(t1=True), diffrax.SubSaveAt(ts=times)]),
        max_steps=8192,
        event=event,
        throw=False,
    )
