"""`find_limit` for a user's own model: which of the two kinds of limit its loss has, and the answer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxflow._core import compiled_once, one_lane_at_a_time, require
from jaxflow.data import TokenData
from jaxflow.limits.affine_limit import affine_limit, is_linear
from jaxflow.limits.limit import Limit
from jaxflow.limits.method import checked_gap
from jaxflow.limits.model_direction import ModelStaged, direction_of, norm_of, predicted
from jaxflow.limits.model_point import MOST_WEIGHTS, is_long, point_of
from jaxflow.losses import Tail, tail_of
from jaxflow.margin import Frobenius
from jaxflow.margin.potential import check_parameters
from jaxflow.models import AbstractAttention, AbstractModel, OwnModel
from jaxflow.risk import EmpiricalRisk, MarginSource
from jaxflow.theory import Rule, has_rule, rule_of


def is_own(risk: EmpiricalRisk, model: Any) -> bool:
    """Whether no theorem registered in the library names the limit of this model."""
    if isinstance(model, AbstractAttention):
        return not has_rule(model)
    return not isinstance(risk.data, TokenData)


def own_call(
    risk: EmpiricalRisk, model: Any, method: Any, gap: float | None, max_steps: int
) -> tuple[Any, Callable[[Any], Limit]]:
    """The method for any other model, and what finds the limit by it. **Raises:** as `find_limit`."""
    method = ModelStaged() if method is None else method
    require(isinstance(method, ModelStaged), "method", "expected ModelStaged for such a model", got=method)
    require(
        not risk.opaque,
        "risk",
        "from_function hides the margins that a limit is read off; give data and a loss, or use from_margins",
    )
    if risk.data is not None:
        risk.data.check()
    risk.check(model)
    rule = rule_of(model) if has_rule(model) else None
    risk, model = wrapped(risk, model)
    # Its errors name the argument before anything long begins.
    outputs: Any = eqx.filter_eval_shape(risk.source.outputs, model)
    trained = [x for x in jax.tree.leaves(eqx.filter(model, risk.filter(model))) if eqx.is_inexact_array(x)]
    require(len(trained) > 0, "trainable", "no floating-point array of the model is trained")
    count = sum(x.size for x in trained)
    linear = _is_plain_linear(risk, model)
    require(
        linear or not risk.soft,
        "loss",
        "with frequencies of classes no theorem on the limit is known but of models that are linear in their trained "
        "parameters. Follow the flow with integrate or descend, or give class numbers",
    )
    norm = norm_of(method)
    mirror = not isinstance(norm, Frobenius)
    require(
        linear or not mirror,
        "method",
        "`potential` is for models that are affine in their trained parameters, under a convex loss with an "
        "exponential tail",
    )
    check_parameters("method", norm, trained)
    gap = checked_gap(gap, jnp.result_type(*trained))
    tail = tail_of(risk.loss)
    ends = tail is Tail.exponential or tail is Tail.flat or not risk.loss.margin
    require(
        ends,
        "loss",
        f"{type(risk.loss).__name__} neither falls exponentially nor becomes flat as margins grow: no theorem on "
        "the limit is known. Follow the flow with integrate",
    )

    # A linear model moves in the span of its data alone, and a direction has no matrix of its weights.
    fewest = count if mirror else min(count, outputs.size)
    dimension = fewest if linear else 0 if tail is Tail.exponential else count
    require(
        dimension <= MOST_WEIGHTS,
        "model",
        f"{count} trained numbers; limits of this loss are solved by dense systems, for at most {MOST_WEIGHTS}. Train "
        "fewer of them (`trainable` of the risk), or follow the flow with integrate or descend to its end",
    )
    return method, lambda method: _find(risk, model, method, gap, max_steps, rule)


def wrapped(risk: EmpiricalRisk, model: Any) -> tuple[EmpiricalRisk, Any]:
    """A model of arrays alone, and a risk that trains the same of them."""
    if isinstance(model, AbstractModel):
        return risk, model
    own = OwnModel(model)
    source = risk.source
    if isinstance(source, MarginSource):
        source = MarginSource(_OfModule(source.margins))
    chosen = None
    if risk.trainable is not None:
        trained = eqx.filter(model, risk.filter(model))

        def moves(x: Any, kept: Any) -> bool | None:
            return None if x is None else kept is not None

        params = jax.tree.map(moves, own.params, trained, is_leaf=lambda x: x is None)
        chosen = eqx.tree_at(lambda m: m.params, own, params)
    return EmpiricalRisk(source, risk.loss, chosen, risk.reduction), own


class _OfModule(eqx.Module):
    """A function of the user's model as one of the wrapped model."""

    function: Callable[[Any], Any] = eqx.field(static=True)

    def __call__(self, model: OwnModel) -> Any:
        return self.function(model.module)


def _is_plain_linear(risk: EmpiricalRisk, model: Any) -> bool:
    return not isinstance(model, AbstractAttention) and is_linear(risk, model)


@one_lane_at_a_time
def _find(risk: EmpiricalRisk, model: Any, method: ModelStaged, gap: float, max_steps: int, rule: Rule | None) -> Limit:
    if _is_plain_linear(risk, model):
        # Rules are those of gradient flow.
        norm = norm_of(method)
        return _linear(risk, model, gap, max_steps, rule if isinstance(norm, Frobenius) else None, norm)
    if tail_of(risk.loss) is Tail.exponential:
        return direction_of(risk, model, method, gap, max_steps, rule)
    return point_of(risk, model, method, gap, max_steps)


@partial(compiled_once, long=is_long)
def _linear(risk: EmpiricalRisk, model: Any, gap: float, max_steps: int, rule: Rule | None, norm: Any) -> Limit:
    ruled = None if rule is None else lambda there: predicted(rule, risk, model, there)
    return affine_limit(risk, model, gap, max_steps, ruled, norm)
