"""What only a limit of attention has: the state of its prediction head, and the sentence that it prints."""

import enum
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxflow._core import Code, Outcome
from jaxflow.data import TokenData
from jaxflow.limits.limit import AbstractFacts, Limit, LimitKind, bound_of, gaps_of, precision_note, when_of
from jaxflow.margin import L1, Frobenius, Nuclear
from jaxflow.models import AbstractAttention, PositionHeads, head_gradients, mix
from jaxflow.trajectory import describe

# Distance from a kink, relative to sizes, that counts as on it. A smooth integrator that stalls steps to and fro by
# 1e-5 of a length of order one (measured); a flow that has nothing to do with the kink ends this close in one of
# some ten thousand units.
ON_KINK = 1e-4


class HeadState(enum.IntEnum):
    """How regular the head is at the outputs where the flow ended.

    - `smooth`: differentiable with a gradient at every output.
    - `on_kink`: some output sits on a kink: the flow slides along it, and a smooth integrator stalls there.
    - `flat`: some output's gradient is exactly zero (all units of an `MLPHead` off); the attention of its query no
      longer changes.
    """

    smooth = 1
    on_kink = 2
    flat = 3


def kink_distances(head: Any, points: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """Least distance of each output from a kink, relative to sizes; +inf where the head names none.

    A head with kinks has a method `kinks(x) -> (r,)`, zero there (`jaxflow.models.MLPHead.kinks`).
    """
    if isinstance(head, PositionHeads):
        return jnp.stack([kink_distances(h, points[:, k]) for k, h in enumerate(head.heads)], axis=1)
    if not hasattr(head, "kinks"):
        return jnp.full(points.shape[:-1], jnp.inf, points.dtype)
    distances = head.kinks
    for _ in range(points.ndim - 1):
        distances = jax.vmap(distances)
    return jnp.min(jnp.abs(distances(points)), axis=-1)


def head_state(model: AbstractAttention, data: TokenData) -> Code:
    """`HeadState` at the model's outputs on the data. A kink outweighs a flat output."""
    points = mix(data, model.attention(data))
    flat = jnp.any(jnp.all(head_gradients(model.head, points) == 0, axis=-1))
    kink = jnp.min(kink_distances(model.head, points)) <= ON_KINK
    state = jnp.where(flat, HeadState.flat.value, HeadState.smooth.value)
    return Code(jnp.where(kink, HeadState.on_kink.value, state), HeadState)


_NOTES = {
    HeadState.on_kink: " An output sits on a kink of the head: the flow slides, a smooth integrator stalls.",
    HeadState.flat: " The head is flat at some output, whose query moves no more.",
}


class AttentionFacts(AbstractFacts):
    """Of attention.

    - `head_state`: whether the head is smooth where the flow ended, or some output is on a kink or on a flat part.
    - `error`: relative, of the combined weights of a limit point: estimated from twice the step of Newton's that would
      follow the one that led to it; where the minima are a set, also by the tolerance of the path; of a loss with its
      infimum at finite outputs also by the distance from where a rougher path ends. +inf of what is no point.
    """

    gap_label: ClassVar[str] = "gap of the weights along the flow"
    draws_program: ClassVar[bool] = False
    head_state: Code
    error: Float[Array, ""]

    def sentence(self, limit: Limit) -> str:
        outcome = Outcome(int(limit.outcome))
        when, note = when_of(limit.trajectory), _NOTES.get(HeadState(int(self.head_state)), "")
        if outcome is Outcome.finite_stationary_point:
            return (
                f"Gradient flow ends at a finite stationary point of norm {float(jnp.linalg.norm(limit.end)):.3g} "
                f"(relative error about {float(self.error):.1e}; |grad L| / sum |p| = {float(limit.stationarity):.1e} "
                f"where the flow was left); no max-margin program describes it.{note}"
            )
        tokens = _tokens(np.asarray(limit.selection))
        program = f"the {_norm_name(limit.prediction.program)} max-margin program"
        if outcome is Outcome.infeasible_program:
            return (
                f"Gradient flow stands still at {when} with attention on tokens {tokens}, but {program} of these "
                f"tokens has no solution.{note}"
            )
        numbers = gaps_of(limit)
        if outcome is Outcome.prediction_contradicted:
            return (
                f"The prediction is contradicted: gradient flow selects tokens {tokens}, and at {when} its direction "
                f"stands still elsewhere than at the optimum of {program}: {numbers}. "
                f"{limit.prediction.sentence()}{note}"
            )
        open_ = outcome is Outcome.ambiguous and limit.kind == LimitKind.none
        if outcome is Outcome.undecided or open_:
            return (
                f"{outcome.name.capitalize()} at {when}: attention is on tokens {tokens}; of its direction and "
                f"{program}, {numbers} ({describe(limit.trajectory.result)}).{precision_note(limit)}{note}"
            )
        return (
            f"Gradient flow selects tokens {tokens} ({outcome.name.replace('_', ' ')}) and its direction solves "
            f"{program}, certified by {bound_of(limit)} at {when}: {numbers}. {limit.prediction.sentence()}{note}"
        )


def _tokens(selection: np.ndarray) -> str:
    rows = selection.reshape(-1, selection.shape[-1])
    names = ["+".join(str(int(t)) for t in np.flatnonzero(row)) or "-" for row in rows]
    shown = names if len(names) <= 12 else [*names[:12], "..."]
    return "(" + ", ".join(shown) + ")"


def _norm_name(program: Any) -> str:
    vector = program.primal_zero.ndim == 1
    names = {Frobenius: "l2-norm" if vector else "Frobenius-norm", Nuclear: "nuclear-norm", L1: "l1-norm"}
    return names.get(type(program.norm), type(program.norm).__name__)
