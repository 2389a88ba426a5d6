r"""Attention with a linear head, one layer or several W in parallel: its gears, and when one follows another.

1. **Explicit**: Tsit5 in arc length, until attention is saturated or the flow rests. Most selections take 40 to 400
   steps. A path at its stability limit (logits of some queries are hundreds apart while others still decide, or the
   gradient vanishes at a finite point) is stiff, and goes on implicitly. So does one that was far out before, where
   roundings hide from the estimate of stiffness what limits a step, and has not arrived after a share of all steps.
2. **Implicit**: Kvaerno5 with Newton's method in log arc length, which near a finite point is a log time.
3. **Multipliers**: `MultiplierNewton` in log arc length, until the flow certifies its direction or its direction is at
   rest. A selection that is left again is followed explicitly. Where the path has come back from far out, it is
   followed on in units of the weights. A stretch that comes to nothing (to a finite point, to another branch than the
   flow's, or out of steps) is dropped; the implicit gear goes on from before it, twice as far each time.
"""

import enum
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import good, linalg
from jaxflow._core.linalg import ROUNDED
from jaxflow.data import TokenData
from jaxflow.flow import (
    AbstractCoordinates,
    ArcLength,
    AtRest,
    Budget,
    Drive,
    Factors,
    Halves,
    Lane,
    LayerScores,
    LogArcLength,
    LossExcess,
    MultiplierNewton,
    Returned,
    Scores,
    SelectionSettled,
    SelfCertified,
    StationaryPoint,
    Stiff,
    Unsaturated,
    Weights,
)
from jaxflow.flow.constraints import leading
from jaxflow.flow.drive import FIRST_STEP
from jaxflow.limits.path import AbstractProblem, End, Shift, Start, broken
from jaxflow.limits.self_certificate import MASKED_ATTENTION
from jaxflow.limits.stages import FLOOR, HORIZON, PATH_RTOL, STATIONARY, Count, Positive, at_rest, stationarity
from jaxflow.limits.steps import explicit_control, implicit_control, kvaerno, relative_control, share_of
from jaxflow.models import (
    CombinedAttention,
    DiagonalAttention,
    FactoredAttention,
    MultiHeadAttention,
    PromptAttention,
    is_linear,
)
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory


class Gear(enum.IntEnum):
    """The gears, in their order."""

    explicit = 0
    implicit = 1
    multipliers = 2


# ρ^L at which the exponents stop to grow. Margins of a limit keep a floor of some ten to a hundred over it; where what
# rounding leaves of an exponent, ρ^L ε, is not small against one, Newton's method has nothing to converge to. The
# first is for a gap of 1e-8, the second for the least that can be asked for.
EXPONENTS, MOST_EXPONENTS = 1e12, 1e14
# Attention of a query's top token at which multipliers take over, and below which they hand back: between the two a
# token is being left, by an explicit method.
SETTLED, LEFT, BACK = SelectionSettled(), Unsaturated(), Returned()
# Where a path starts `direct` it is close to its end, and a step too long for Newton's method is taken again.
DIRECT_STEP = 0.1


def coordinates_of(risk: EmpiricalRisk, model: Any, conserved: Any = None) -> AbstractCoordinates | None:
    """Coordinates that have the margins of a model; None for other models. `conserved`: see `Halves`."""
    kinds: dict[type, AbstractCoordinates] = {CombinedAttention: Scores(), FactoredAttention: Factors()}
    kinds |= {DiagonalAttention: Halves(conserved), PromptAttention: Weights()}
    parts, found = (model,), kinds.get(type(model))
    if isinstance(model, MultiHeadAttention) and all(isinstance(part, CombinedAttention) for part in model.parts):
        parts, found = model.parts, LayerScores()
    if found is None or risk.filter(model) != model.trainable():
        return None
    return found if all(is_linear(part.head) for part in parts) else None


def cap_of(model: Any, gap: Positive) -> Float[Array, ""]:
    """The length at which exponents stop to grow: their floor in the margins is a hundredth of the gap or less."""
    return jnp.clip(1e4 / gap, EXPONENTS, MOST_EXPONENTS) ** (1.0 / model.degree)


class AttentionGears(AbstractProblem):
    r"""The flow of one layer.

    **Arguments:** `conserved`: `kept` of the start; `gap` to certify; `near`: the longest explicit stretch, in arc
    length; `far`: the least length to go to for the save points, `saves` of them; `log_horizon`: log arc length to go
    to at most; `cap`, `floor`, `timed` as in `Staged`; `most_cap`: of paths whose margins are thin (see `_cap_from`),
    `cap` by default; `fitted`: see `fitted_below`; `path_rtol`: of explicit and implicit gears, which decide where a
    path goes; `quick_rtol` of a first try by multipliers, and `rtol` of one that decides it too; `solver` of theirs;
    `report`: see `Drive`; `direct`: stretches by multipliers start in coordinates in which they are near their end (see
    `lane`), for where the path to it is not asked for.
    """

    doubts: ClassVar[bool] = True
    conserved: Any
    gap: Positive
    cap: Positive
    far: Positive
    fitted: Positive
    most_cap: Positive | None = None
    near: float = HORIZON
    log_horizon: float = HORIZON
    floor: float = FLOOR
    saves: int = 0
    timed: bool = False
    path_rtol: Positive = PATH_RTOL
    # At 1e-3 a path with two tokens about to take over, of scores 1e-12 above others, followed the wrong one.
    rtol: float = 1e-4
    quick_rtol: float = 1e-3
    solver: MultiplierNewton = MultiplierNewton()
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)
    direct: bool = eqx.field(static=True, default=False)

    @property
    def gears(self) -> tuple[str, ...]:
        return tuple(Gear.__members__)

    @property
    def log_cap(self) -> Float[Array, ""]:
        return jnp.log(self.cap)

    def drive(self, gear: int, model: Any, max_steps: Count, again: Bool[Array, ""]) -> Drive:
        whole, rtol = jnp.asarray(max_steps), self.path_rtol
        still = partial(StationaryPoint, degree=model.degree)
        rests = still(STATIONARY) | LossExcess(self.fitted)
        if gear == Gear.explicit:
            ends = rests | SETTLED | Stiff()
            most = jnp.where(again, share_of(whole), whole)
            return Drive(diffrax.Tsit5(), explicit_control(rtol), ends, most, self.report, jumps=False)
        if gear == Gear.implicit:
            # Well below the tolerance of a step, for whose error it would be taken, and above the roundings of
            # exponents, which are as large as lengths (to the power L). One Jacobian a step. Where a path stands while
            # the clock goes on, a tolerance that grew with the clock would be one of whole logits.
            solver = kvaerno(1e-2 * rtol, 1e-2 * rtol, partial(linalg.chord, residual=False, relative=True))
            controller = relative_control(rtol)
            # However far it has to go: of a gradient that is rounding the next step ends anywhere, and where pushes
            # have underflown there it would look like a rest.
            ends = rests | SETTLED
            return Drive(solver, controller, ends, whole, self.report, still(ROUNDED), jumps=False)
        rtol = jnp.where(again, self.rtol, self.quick_rtol)
        controller = implicit_control(rtol=rtol, atol=1e-2 * rtol)
        # A limit is concluded from settled attention, which of thin margins comes later than their certificate.
        certified = SelfCertified(self.gap) & SelectionSettled(MASKED_ATTENTION, pull=1.0)
        if self.saves:
            certified = certified & Budget(log_arc_length=jnp.log(self.far))
        ends = certified | AtRest() | LEFT | BACK | still(ROUNDED)
        return Drive(self.solver, controller, ends, share_of(whole), self.report)

    def lane(self, gear: int, drive: Drive, start: Start) -> Lane:
        risk, here = start.risk, start.here
        model: Any = here.model
        scaled = None if self.conserved is None else self.conserved * jnp.exp(-2.0 * start.beyond)
        coordinates: Any = coordinates_of(risk, model, scaled)
        if gear == Gear.explicit:
            clock = ArcLength(floor=self.floor, timed=self.timed)
            return start.lane(drive, coordinates=coordinates, clock=clock, until=self.near, dt0=FIRST_STEP)
        unit = start.unit
        if gear == Gear.implicit:
            clock = LogArcLength(unit=unit, floor=self.floor, timed=False)
            return start.lane(
                drive,
                coordinates=coordinates,
                clock=clock,
                until=self.log_horizon,
                least=clock.reading(self._careful(start.lost)),
                dt0=FIRST_STEP,
            )
        # The state x/ρ goes to the unit velocity, and an implicit step is as long as its way there is straight.
        # `direct` lets it start at length one, of W at the velocity itself: what is left of the way are its turns.
        if self.direct and isinstance(coordinates, Scores):
            coordinates = Scores(lead=unit)
        elif self.direct:
            unit = jnp.exp(here.log_norm)
        save_at = jnp.linspace(jnp.log(self.far / 100), jnp.log(0.99 * self.far), self.saves) if self.saves else None
        return start.lane(
            drive,
            coordinates=coordinates,
            clock=LogArcLength(unit=unit, cap=self._cap_from(start.unit, model.degree), timed=False),
            until=self.log_horizon,
            save_at=save_at,
            dt0=DIRECT_STEP if self.direct else FIRST_STEP,
        )

    def shift(self, gear: int, risk: EmpiricalRisk, lost: Int[Array, ""], stretch: Trajectory) -> Shift:
        data: Any = risk.data
        final: Any = stretch.final
        followed = good(stretch.result)
        share, pulled = _selection(stretch, data)
        if gear in (Gear.explicit, Gear.implicit):
            stiff = ~broken(stretch) if gear == Gear.explicit else jnp.asarray(False)
            following = jnp.where(
                followed & selected(stretch, data), Gear.multipliers, jnp.where(stiff, Gear.implicit, End.ended)
            )
            # Pushes cancel at a minimum, or for a while, or all are rounding.
            cancels = followed & at_rest(final, final.model.degree, self.conserved, self.fitted)
            following = jnp.where(cancels, End.doubt - jnp.maximum(following, Gear.implicit), following)
            return Shift(following, jnp.asarray(True))
        left = followed & (share < LEFT.share)
        reach = final.log_norm - final.log_arc_length
        back = followed & ~left & (reach < jnp.log(BACK.share))
        # A single step to nearly nothing ends on another branch (from e^17 to e^3, seen with two hidden halves).
        jumped = followed & (reach < 2.0 * jnp.log(BACK.share))
        nothing = ~followed | jumped | (stationarity(final) <= ROUNDED) | (~left & ~back & pulled)
        following = jnp.where(back, Gear.multipliers, jnp.where(left, Gear.explicit, End.ended))
        following = jnp.where(nothing, Gear.implicit, following)
        # A long step may pass over what the flow does, and come to another end: from before it again, more closely.
        hasty = (lost == 0) & (nothing | left | back)
        following = jnp.where(hasty, Gear.multipliers, following)
        return Shift(following, ~(nothing | hasty))

    def _cap_from(self, unit: Array, degree: int) -> Array:
        """The length at which exponents stop to grow, of a path that settles at a length of `unit`: its least exponent
        is minus the log of the tolerance there, and grows by as much as one of margin one does up to `cap`. Of margins
        of 1.7e-4 in (K, Q) what is left of exponents of 1e12 is more than a gap of 1e-8."""
        if self.most_cap is None:
            return jnp.asarray(self.cap)
        settled = -np.log(SETTLED.tolerance)
        return jnp.clip(self.cap * unit / settled ** (1.0 / degree), self.cap, self.most_cap)

    def _careful(self, lost: Int[Array, ""]) -> Float[Array, ""]:
        """The log arc length by which the implicit gear goes on at least: two after the first stretch that came to
        nothing twice, and twice as much after each other one."""
        return jnp.where(lost > 1, 2.0 ** (lost - 1), 0.0)


def selected(path: Trajectory, data: TokenData) -> Bool[Array, ""]:
    """Whether a path has come to where every query selects one token, and next to nothing pulls away from it."""
    share, pulled = _selection(path, data)
    return (share >= 1.0 - SETTLED.tolerance) & ~pulled


def _selection(path: Trajectory, data: TokenData) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """The least share of its attention that a query gives its top token, and whether the multipliers that pull away
    from these tokens have more than the share of `SETTLED`: a direction at rest between those and the others repels,
    and only a long implicit step can come to it."""
    top, share = leading(path.final.model.attention(data), data)
    pull = jnp.where(top, 0.0, jnp.asarray(path.final.multipliers))
    pulled = jnp.sum(jnp.maximum(-pull, 0.0)) > SETTLED.tolerance * jnp.sum(jnp.abs(pull))
    return jnp.min(share), pulled
