r"""The gradient flow beside the descent of figure 8, on a smooth integrator: how far it gets.

$1^\top\mathrm{ReLU}(Vx)$ is linear between its kinks. Where a sequence with label −1 composes several tokens, the
flow slides along a kink, across which the gradient jumps; a smooth integrator then steps to and fro ever more shortly.
"""

import enum
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxflow._core import RESULTS, good
from jaxflow.data import TokenData
from jaxflow.flow import ArcLength, Budget, Scores, StationaryPoint, integrate
from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, MLPHead
from jaxflow.risk import EmpiricalRisk

# Without kinks the way takes 100 to 300 steps.
MAX_STEPS = 3000
# ‖∇L‖/Σ|p| below this is a stationary point, and the floor of the clock lets time pass there, as for figure 7.
STATIONARY = 1e-6
FLOOR = 0.03


class FlowEnd(enum.IntEnum):
    """How the flow ended."""

    not_run = 0
    reached = 1
    stationary = 2
    budget_spent = 3
    failed = 4


@partial(jax.jit, static_argnums=0)
def flow_ends(length: float, tokens: Any, queries: Any, labels: Any, V: Any, W: Any, log_time: Any) -> dict[str, Array]:
    """The flows of a batch of instances until `log_time` `(b,)`, or an arc length that is far beyond.

    **Returns:** `flow_end` `(b,)`, codes of `FlowEnd`; `flow_log_time` `(b,)`; `flow_weights` `(b, d, d)`.
    """
    return jax.vmap(partial(_flow, length))(tokens, queries, labels, V, W, log_time)


def _flow(
    length: float, tokens: Array, queries: Array, labels: Array, V: Array, W: Array, log_time: Array
) -> dict[str, Array]:
    risk = EmpiricalRisk(TokenData(tokens, queries, labels), Logistic())
    path = integrate(
        risk,
        CombinedAttention(W, MLPHead(V)),
        clock=ArcLength(floor=FLOOR),
        coordinates=Scores(),
        until=jnp.asarray(length),
        stop=StationaryPoint(STATIONARY) | Budget(log_time=log_time),
        solver=diffrax.Tsit5(),
        # A hundred-thousandth of a step's length: what is compared are selections and directions.
        controller=diffrax.PIDController(rtol=1e-5, atol=1e-7, pcoeff=0.3, icoeff=0.4),
        max_steps=MAX_STEPS,
        throw=False,
    )
    final = path.final
    spent = (path.result == RESULTS.max_steps_reached) | (path.result == RESULTS.max_steps_rejected)
    end = jnp.where(good(path.result), FlowEnd.stationary.value, FlowEnd.failed.value)
    end = jnp.where(spent, FlowEnd.budget_spent.value, end)
    end = jnp.where(good(path.result) & (final.log_time >= log_time), FlowEnd.reached.value, end)
    return {"flow_end": end, "flow_log_time": final.log_time, "flow_weights": final.model.W}
