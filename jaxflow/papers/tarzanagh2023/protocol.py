"""The published experiments' descent, and flows beside it."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
from jaxtyping import Array

from jaxflow._core import check_kind
from jaxflow.flow import ArcLength, Drive, StationaryPoint, run_queue
from jaxflow.flow.solvers import state_norm
from jaxflow.gradient_descent import descend
from jaxflow.models import AbstractAttention, FactoredAttention
from jaxflow.risk import EmpiricalRisk

# "The smallest representable number, e.g. computed as 1 + λ = 1", says the published code: 2.22e-16.
_EPSILON = 2.0**-52

# In which ways a model is trained.
WAYS = {"flow": "the flow", "descent": "the published descent"}

# Every sequence gives its top token all but this: attention has settled.
SETTLED = 1e-3
# ‖∇L‖/Σ|p| below this is a stationary point: saturated ends of unit-sphere instances have 1e-2 to 1.
STATIONARY = 1e-6
# The stationary points of small dimension have a finite length before them; the floor lets time pass there.
FLOOR = 0.03
# Lanes of a batch: a wider one waits longer for its slowest member.
WIDTH = 16
# 1 − corr of a direction on its way, and as near as a finite length lets it: of factors it falls like a power of log t.
ALIGNED = 0.05


def figure_key(number: int) -> Callable[..., Any]:
    """`draw_from` of a figure: the key of the seed with the figure's number folded in, the same for all cells."""
    return lambda seed, *cell: jax.random.fold_in(jax.random.key(seed), number)


def published_protocol(model: Any) -> dict[str, Any]:
    """The settings of the published experiments, as arguments of `descend`.

    Normalised descent with η = 0.1 for 2,000 steps (Tarzanagh et al. 2023, App. F; the loss is the logistic
    one). K and Q are normalised separately, and a penalty of weight 2.22e-16 keeps them from growing on a
    gradient of rounding errors. The published code adds 2.22e-16 to every norm, too.

    Steps therefore shrink once gradients fall below that. Those runs lose the gradient to rounding at about
    the same size; `descend` does not, and ends up to a few percent further from the start.
    """
    check_kind("model", model, AbstractAttention, "an attention model")
    factored = isinstance(model, FactoredAttention)
    return {
        "steps": 2000,
        "learning_rate": 0.1,
        "normalised": "separately" if factored else "jointly",
        "epsilon": _EPSILON,
        "ridge": _EPSILON if factored else 0.0,
    }


def explicit_flows(
    risks: Any, models: Any, save_at: Array, until: Any, coordinates: Any, *, rtol: float, atol: float, steps: int
) -> Any:
    """The flows of a batch along the arc length, by explicit steps."""
    controller = diffrax.PIDController(rtol=rtol, atol=atol, norm=state_norm)
    drive = Drive(diffrax.Tsit5(), controller, StationaryPoint(STATIONARY), steps)
    how: Any = {"clock": ArcLength(floor=FLOOR), "coordinates": coordinates, "until": until, "save_at": save_at}
    starts = eqx.filter_vmap(lambda risk, model: drive.start(risk, model, **how))(risks, models)
    lanes = run_queue(drive, starts, width=min(WIDTH, len(risks.data.labels)))
    return eqx.filter_vmap(drive.trajectory)(lanes)


def published_descent(risk: EmpiricalRisk, model: Any, **how: Any) -> Any:
    """`descend` by these settings, but for those that are given."""
    return descend(risk, model, throw=False, **(published_protocol(model) | how))
