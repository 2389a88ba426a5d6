r"""The gradient flow beside the descent of figure 8: how far it gets, and what descent with small steps is to it.

$1^\top\mathrm{ReLU}(Vx)$ is linear between its kinks. Where a sequence with label −1 composes several tokens, the
flow slides along a kink, across which the gradient jumps, and descent steps to and fro about it. Steps of a smooth
integrator shrink there and get nowhere (229 of 240 flows spent 3,000 of them); `Filippov` follows the kink.
"""

import enum
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxflow._core import RESULTS
from jaxflow.data import TokenData
from jaxflow.flow import Filippov, Scores, StationaryPoint, integrate
from jaxflow.gradient_descent import descend
from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, MLPHead
from jaxflow.risk import EmpiricalRisk

# The way takes 100 to 400 steps.
MAX_STEPS = 3000
# ‖∇L‖/Σ|p| below this is a stationary point, as for figure 7.
STATIONARY = 1e-6
# A thousandth of what the shortest steps of descent differ by.
RTOL = 1e-9


class FlowEnd(enum.IntEnum):
    """How the flow ended."""

    not_run = 0
    reached = 1
    stationary = 2
    budget_spent = 3
    failed = 4
    sliding = 5


@partial(jax.jit, static_argnums=(0, 1))
def small_descents(
    length: float, rate: float, tokens: Any, queries: Any, labels: Any, V: Any, W: Any
) -> dict[str, Array]:
    """Normalised descent of a batch of instances with steps of length `rate`, over a path of `length`.

    **Returns:** `weights` `(b, d, d)` and `log_time` `(b,)` at the end.
    """

    def one(*instance: Array) -> dict[str, Array]:
        risk, model = _instance(*instance)
        path = descend(risk, model, steps=round(length / rate), learning_rate=rate, throw=False)
        return {"weights": path.final.model.W, "log_time": path.final.log_time}

    return jax.vmap(one)(tokens, queries, labels, V, W)


@jax.jit
def flow_ends(tokens: Any, queries: Any, labels: Any, V: Any, W: Any, log_time: Any, readings: Any) -> dict[str, Array]:
    """The flows of a batch of instances until `log_time` `(b,)`, and their weights at the `readings` `(b, r)` of log t.

    **Returns:** `flow_end` `(b,)`, codes of `FlowEnd`; `flow_log_time`; `flow_weights` `(b, d, d)`; `flow_readings`
    `(b, r, d, d)`; `flow_steps`; how many kinks were `flow_crossed` and `flow_met` to slide on, and on how many the
    flow ends, `flow_sliding`.
    """
    # One after another: on a CPU none waits for the slowest.
    return jax.lax.map(lambda parts: _flow(*parts), (tokens, queries, labels, V, W, log_time, readings))


def _instance(
    tokens: Array, queries: Array, labels: Array, V: Array, W: Array
) -> tuple[EmpiricalRisk, CombinedAttention]:
    return EmpiricalRisk(TokenData(tokens, queries, labels), Logistic()), CombinedAttention(W, MLPHead(V))


def _flow(
    tokens: Array, queries: Array, labels: Array, V: Array, W: Array, log_time: Array, readings: Array
) -> dict[str, Array]:
    risk, model = _instance(tokens, queries, labels, V, W)
    order = jnp.argsort(readings)
    path = integrate(
        risk,
        model,
        clock="log_time",
        coordinates=Scores(),
        until=log_time,
        stop=StationaryPoint(STATIONARY),
        save_at=readings[order],
        solver=Filippov(),
        controller=diffrax.PIDController(rtol=RTOL, atol=1e-2 * RTOL, pcoeff=0.3, icoeff=0.4),
        max_steps=MAX_STEPS,
        throw=False,
    )
    final, saved = path.final, path.saved
    # A flow that has come to rest stays where it is.
    there = jnp.where(saved.reached[:, None, None], saved.model.W, final.model.W)  # pyright: ignore
    end = jnp.asarray(FlowEnd.failed.value)
    for result, code in (
        (RESULTS.successful, FlowEnd.reached),
        (RESULTS.event_occurred, FlowEnd.stationary),
        (RESULTS.max_steps_reached, FlowEnd.budget_spent),
        (RESULTS.sliding, FlowEnd.sliding),
    ):
        end = jnp.where(path.result == result, code.value, end)
    return {
        "flow_end": end,
        "flow_log_time": final.log_time,
        "flow_weights": final.model.W,
        "flow_readings": jnp.zeros_like(there).at[order].set(there),
        "flow_steps": path.stats["num_steps"],
        "flow_crossed": path.stats["num_crossed_kinks"],
        "flow_met": path.stats["num_met_kinks"],
        "flow_sliding": jnp.sum(path.stats["sliding"]),
    }
