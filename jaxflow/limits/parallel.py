"""`find_limits`: layers in parallel, a limit for each."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxflow._core import checked, compiled_once, one_lane_at_a_time, tree_in_float
from jaxflow.limits.find import MAX_STEPS, check_arguments, conclude, refuse_ties
from jaxflow.limits.limit import Limit
from jaxflow.limits.method import AbstractMethod, arguments_of
from jaxflow.limits.progress import told
from jaxflow.limits.stages import Count, Positive, at_rest, fitted_below, minimum_near
from jaxflow.models import MultiHeadAttention
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Rule, rule_of
from jaxflow.trajectory import Point, Trajectory

THEOREM = (
    "No theorem is printed for layers in parallel: in the flow of one layer the others appear only in the output "
    "weights, which stay between positive bounds, and each layer's program is that of a single layer"
)


@checked(least={"max_steps": 1})
def find_limits(
    risk: EmpiricalRisk,
    model: MultiHeadAttention,
    *,
    method: Any = None,
    gap: float | None = None,
    max_steps: int | None = None,
    throw: bool = True,
    progress: Any = False,
) -> tuple[Limit, ...]:
    r"""Where the joint gradient flow of attention layers in parallel goes: one `Limit` for each layer.

    All layers follow one path in one time. Once they saturate, layer h obeys
    $\dot W_h=-\sum_{it}p^{(h)}_{it}x_{it}z_i^\top$ with its own scores $Y_iv_h^\top x_{it}$ and output weights that
    tend to constants, so that its direction solves its own program, and all margins grow like $\log t$.

    **Arguments, errors:** as `jaxflow.find_limit`; `model`: a `MultiHeadAttention` whose layers are all of one
    degree (W, or factors). In each `Limit` the trajectory is the joint one, with the model, velocity, multipliers and
    gradient norm of that layer; log time, arc length and norm are those of all layers together.

    **Example:**

    ```python
    layers = jf.models.MultiHeadAttention.init(jax.random.key(0), data, [head, head])
    for one in jf.limits.find_limits(risk, layers, throw=False):
        print(one)
    ```
    """
    risk, model = tree_in_float((risk, model))
    method, gap = check_arguments(risk, model, MultiHeadAttention, method, gap)
    if model.degree is None:
        raise ValueError("model: expected layers of one degree, W or factors but not both")
    data: Any = risk.data
    if throw:
        for part in model.parts:
            refuse_ties(data, part.head)
    rules = tuple(rule_of(part) for part in model.parts)
    numbers = arguments_of(method, gap, MAX_STEPS if max_steps is None else max_steps, data)

    def found(method: Any) -> tuple[Limit, ...]:
        return _find_limits(risk, model, method, *numbers, rules)

    return told(found, method, risk, model, throw=throw, progress=progress, name="find_limits")


@one_lane_at_a_time
@compiled_once
def _find_limits(
    risk: EmpiricalRisk,
    model: MultiHeadAttention,
    method: AbstractMethod,
    gap: Positive,
    max_steps: Count,
    rules: tuple[Rule, ...],
) -> tuple[Limit, ...]:
    # As in `find_limit`: other rules are another program to compile.
    del rules
    joint = method.follow(risk, model, max_steps, gap)
    seems_still = at_rest(joint.final, model.degree or 1, fitted=fitted_below(risk, model))
    rest = minimum_near(risk, joint.final, seems_still)
    return tuple(
        conclude(risk, part, layer_trajectory(joint, h), gap, THEOREM, rest._replace(model=rest.model.parts[h]))
        for h, part in enumerate(model.parts)
    )


def layer_trajectory(joint: Trajectory, h: int) -> Trajectory:
    """The joint trajectory of `MultiHeadAttention` as layer h sees it."""

    def seen(point: Point, axis: int) -> Point:
        velocity: PyTree = point.velocity.parts[h]
        multipliers: Any = point.multipliers
        size = jnp.sqrt(sum(jnp.sum(leaf**2, axis=tuple(range(axis, leaf.ndim))) for leaf in jax.tree.leaves(velocity)))
        return replace(
            point,
            model=point.model.parts[h],
            velocity=velocity,
            multipliers=jnp.take(multipliers, h, axis=axis),
            log_gradient_norm=point.log_gradient_norm + jnp.log(size),
        )

    return replace(joint, final=seen(joint.final, 0), saved=None if joint.saved is None else seen(joint.saved, 1))
