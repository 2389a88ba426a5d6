"""One-layer attention with a linear head, followed until its own certificate closes: explicit, then by multipliers."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import RESULTS, good, linalg
from jaxflow.flow import (
    AbstractCoordinates,
    AbstractStop,
    ArcLength,
    AtRest,
    Budget,
    Drive,
    Factors,
    Halves,
    Lane,
    LogArcLength,
    MultiplierNewton,
    Scores,
    SelectionSettled,
    SelfCertified,
    Situation,
    StationaryPoint,
    Unsaturated,
)
from jaxflow.flow.pairs import has_pairs
from jaxflow.flow.solvers import state_norm
from jaxflow.limits.self_certificate import settled
from jaxflow.limits.stages import (
    SETTLED_STATIONARY,
    STATIONARY,
    Count,
    Positive,
    followed_by,
    kept,
    rests,
    stationarity,
)
from jaxflow.models import CombinedAttention, DiagonalAttention, FactoredAttention, is_linear
from jaxflow.risk import EmpiricalRisk
from jaxflow.trajectory import Trajectory

# ρ^L at which the exponents stop to grow. Margins of a limit keep a floor of some ten to a hundred over it; where what
# rounding leaves of an exponent, ρ^L ε, is not small against one, Newton's method has nothing to converge to. The
# first is for a gap of 1e-8, the second for the least that can be asked for.
EXPONENTS, MOST_EXPONENTS = 1e12, 1e14
# Attention of a query's top token at which multipliers take over, and below which they hand back: between the two a
# token is being left, by an explicit method.
SATURATED, LEAVING = 1e-3, 1e-2
# The share of the multipliers that may pull away from the selected tokens when they take over.
PULL = 1e-3
# The log arc length to which paths are followed in multipliers. A component with slack 1 - κ falls like
# exp(-2(1 - κ)s): to 1e-8 for every slack above 1e-5.
LOG_HORIZON = 1e6
# Rounds of explicit steps and multipliers, each twice as long as the one before: a start far out passes through
# several selections.
ROUNDS = 16
# Steps of an explicit stretch: paths to a selection take 100 to 400. Longer ones are at the limit of their stability.
EXPLICIT_STEPS = 1024
# Where the gradient cancels to this at the end of such a stretch, it is a rest that it cannot tell: the weights move to
# and fro by the tolerance, 1e-6 of them, and the gradient with them. The next round has `CLOSER` times its tolerance.
NEARLY_STATIONARY, CLOSER = 1e-2, 1e-4
# Else some logits are hundreds apart while others still decide. Tolerance and steps of the implicit stretch that then
# takes the path to where attention is saturated: 6 to 20 steps were needed, and some that do not end fail at each.
STIFF_RTOL, STIFF_STEPS = 1e-5, 256
# Multipliers that come to rest, or to nothing in so many steps, may be on another branch than the flow: seen with one
# token that pulls and coordinates of diagonal attention that grow from 1e-3. What they found is dropped, and the path
# goes on by the same implicit method for so much log arc length, after which multipliers take over again.
MULTIPLIER_STEPS, CAREFUL_LENGTH = 512, 2.0
# The first step in log arc length. Diffrax's own rule looks at the field, which nothing else here needs.
FIRST_STEP = 0.01
# Where a path starts `direct` it is close to its end, and a step too long for Newton's method is taken again.
DIRECT_STEP = 0.1


def coordinates_of(risk: EmpiricalRisk, model: Any, conserved: Any = None) -> AbstractCoordinates | None:
    """Coordinates of a model that know its margins; None for other models. `conserved`: see `Halves`."""
    kinds = {CombinedAttention: Scores(), FactoredAttention: Factors(), DiagonalAttention: Halves(conserved)}
    found = kinds.get(type(model))
    if found is None or not is_linear(model.head) or risk.filter(model) != model.trainable():
        return None
    return found


def cap_of(model: Any, gap: Positive) -> Float[Array, ""]:
    """The length at which exponents stop to grow: their floor in the margins is a hundredth of the gap or less."""
    return jnp.clip(1e4 / gap, EXPONENTS, MOST_EXPONENTS) ** (1.0 / model.degree)


def first_stretch(model: Any) -> float:
    """Arc length by which most selections are made: logits grow like it for W, like its square for factors."""
    return 100.0 if model.degree == 1 else 30.0


class Rounds(eqx.Module):
    r"""How one-layer attention is followed: in rounds, until the flow certifies its direction, rests, or has ended.

    A round is an explicit stretch in arc length, until attention is saturated, and a stretch in log arc length by
    `MultiplierNewton`. One round is enough unless a selection is left again. Both are values that drive one lane or
    a queue of them. `follow` also has, for diagonal attention, an accurate implicit stretch between the two: where
    explicit steps are used up, and where multipliers were lost (see `MULTIPLIER_STEPS`).

    **Arguments:** `gap` to certify; `near`: arc length of the first explicit stretch; `far`: the least length to go to
    for the save points, `saves` of them; `log_horizon`: log arc length to go to at most; `cap`, `floor`, `timed` as in
    `Staged`; `explicit_rtol`, `rtol`: tolerances of the two stretches; `solver` of the second; `report`: see `Drive`;
    `direct`: the stretch by multipliers starts in coordinates in which it is near its end (see `turn`), for where the
    path to it is not asked for.
    """

    gap: Positive
    near: float
    far: float | Float[Array, ""]
    log_horizon: float
    cap: Positive
    floor: float = 0.03
    saves: int = 0
    timed: bool = False
    explicit_rtol: float = 1e-6
    rtol: Positive = 1e-3
    solver: MultiplierNewton = MultiplierNewton()
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)
    direct: bool = eqx.field(static=True, default=False)

    def explicit(self, budget: Any, model: Any, closer: Any = 1.0) -> Drive:
        """What drives the explicit stretch of a model of this class, with tolerances `closer` times as large."""
        rtol = self.explicit_rtol * closer
        controller = diffrax.PIDController(rtol=rtol, atol=1e-2 * rtol, norm=state_norm)
        stop = _still(model) | SelectionSettled(SATURATED, PULL)
        return Drive(diffrax.Tsit5(), controller, stop, budget, self.report)

    def implicit(self, budget: Any, model: Any) -> Drive:
        """What drives the stretch by multipliers of a model of this class."""
        controller = diffrax.PIDController(
            rtol=self.rtol, atol=1e-2 * self.rtol, pcoeff=0.3, icoeff=0.4, norm=state_norm
        )
        certified = SelfCertified(self.gap)
        if self.saves:
            certified = certified & Budget(log_arc_length=jnp.log(self.far))
        still = StationaryPoint(STATIONARY, model.degree, pairs=has_pairs(model))
        ends = certified | AtRest(pairs=has_pairs(model)) | Unsaturated(1.0 - LEAVING) | still
        return Drive(self.solver, controller, ends, budget, self.report)

    def stiff(self, budget: Any, model: Any, careful: Bool[Array, ""]) -> Drive:
        """What drives a path on that an explicit method does not get through, or (`careful`) multipliers do not."""
        # Newton's method well below the tolerance of a step: what it leaves is taken for the error of the step.
        solver = diffrax.Kvaerno5(root_finder=linalg.newton(rtol=1e-8, atol=1e-10, norm=state_norm))
        controller = diffrax.PIDController(
            rtol=STIFF_RTOL, atol=1e-2 * STIFF_RTOL, pcoeff=0.3, icoeff=0.4, norm=state_norm
        )
        stop = _still(model) | (SelectionSettled(SATURATED, PULL) & _If(~careful))
        return Drive(solver, controller, stop, jnp.minimum(budget, STIFF_STEPS), self.report)

    def start(
        self, drive: Drive, risk: EmpiricalRisk, model: Any, count: Array, idle: Any = False, conserved: Any = None
    ) -> Lane:
        """A lane at the start of the explicit stretch of round `count`; each goes twice as far as the one before.
        `conserved`: `kept` of the first model."""
        clock = ArcLength(floor=self.floor, timed=self.timed)
        until = self.near * 2.0**count
        return drive.start(risk, model, coordinates=_known(risk, model, conserved), clock=clock, until=until, idle=idle)

    def turn(
        self,
        drive: Drive,
        risk: EmpiricalRisk,
        path: Trajectory,
        length: Array,
        idle: Any = False,
        conserved: Any = None,
    ) -> Lane:
        """A lane that goes on where the explicit stretch `path` ended, after a log arc length of `length`.

        Its state x/ρ goes to the unit velocity, and an implicit step is as long as its way there is straight. `direct`
        lets it start at length one, of W at the velocity itself: what is left of the way are its turns.
        """
        final = path.final
        unit, coordinates = _unit(path, length), _known(risk, final.model, conserved)
        if self.direct and isinstance(coordinates, Scores):
            coordinates = Scores(lead=unit)
        elif self.direct:
            unit = jnp.exp(final.log_norm)
        save_at = jnp.linspace(jnp.log(self.far / 100), jnp.log(0.99 * self.far), self.saves) if self.saves else None
        return drive.start(
            risk,
            final.model,
            coordinates=coordinates,
            clock=LogArcLength(unit=unit, cap=self.cap, timed=False),
            until=self.log_horizon,
            save_at=save_at,
            dt0=DIRECT_STEP if self.direct else FIRST_STEP,
            idle=idle | ended(risk, path, conserved),
        )

    def through(
        self,
        drive: Drive,
        risk: EmpiricalRisk,
        path: Trajectory,
        length: Array,
        careful: Bool[Array, ""],
        conserved: Any = None,
    ) -> Trajectory:
        """`path`, an explicit stretch, and the one by `stiff` where its steps were used up, or in a `careful` round."""
        final = path.final
        stuck = careful | (path.result == RESULTS.max_steps_reached)
        clock = LogArcLength(unit=_unit(path, length), floor=self.floor, timed=False)
        start = drive.start(
            risk,
            final.model,
            coordinates=_known(risk, final.model, conserved),
            clock=clock,
            until=jnp.where(careful, clock.reading(jnp.asarray(CAREFUL_LENGTH)), self.log_horizon),
            dt0=FIRST_STEP,
            idle=~stuck,
        )
        return followed_by(path, drive.trajectory(drive.run(start)), ~stuck)

    def follow(self, risk: EmpiricalRisk, model: Any, max_steps: Count) -> Trajectory:
        """The path of one model."""
        conserved, pairs = kept(model), has_pairs(model)

        def one(model: Any, past: tuple[Any, Any, Any], count: Array, closer: Array, careful: Array) -> Any:
            budget = max_steps - past[2]["num_steps"]
            most = jnp.where(closer, max_steps, EXPLICIT_STEPS)
            drive = self.explicit(jnp.minimum(budget, most), model, jnp.where(closer, CLOSER, 1.0))
            path = drive.trajectory(drive.run(self.start(drive, risk, model, count, careful, conserved)))
            if pairs:
                drive = self.stiff(budget - path.stats["num_steps"], model, careful)
                path = self.through(drive, risk, path, past[1], careful, conserved)
            left = budget - path.stats["num_steps"]
            drive = self.implicit(jnp.minimum(left, MULTIPLIER_STEPS) if pairs else left, model)
            done = careful | ended(risk, path, conserved)
            further = drive.trajectory(drive.run(self.turn(drive, risk, path, past[1], done, conserved)))
            lost = ~done & good(further.result) & (stationarity(further) <= STATIONARY)
            if pairs:
                short = (further.result == RESULTS.max_steps_reached) & (left > MULTIPLIER_STEPS)
                lost = lost | (~done & (short | (good(further.result) & _off_the_path(further))))
            whole = followed_by(path, further, done | lost)
            steps = {name: path.stats[name] + jnp.where(done, 0, further.stats[name]) for name in path.stats}
            return eqx.tree_at(lambda t: t.stats, whole, steps), lost

        nothing, zero = jnp.asarray(-jnp.inf), jnp.zeros((), int)
        names = ("num_steps", "num_accepted_steps", "num_rejected_steps", "num_failed_solves")
        past = nothing, nothing, {name: zero for name in names}
        arrays, static = eqx.partition(model, eqx.is_array)
        # Traced once: tracing is a good part of what a first call waits for.
        no = jnp.asarray(False)
        one = eqx.filter_closure_convert(one, model, past, zero, no, no)
        shapes, fixed = eqx.partition(
            eqx.filter_eval_shape(one, model, past, zero, no, no)[0], lambda x: isinstance(x, jax.ShapeDtypeStruct)
        )
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def body(carry: Any) -> Any:
            arrays, past, _, count, _, closer, careful = carry
            found, lost = one(eqx.combine(arrays, static), past, count, closer, careful)
            moved, kept = eqx.filter(found.final.model, eqx.is_array), eqx.filter(found, eqx.is_array)
            past = added(past, found)
            remain = past[2]["num_steps"] < max_steps
            # Out of steps, but only of those of one stretch.
            short = (found.result == RESULTS.max_steps_reached) & remain
            closer = closer | (short & (stationarity(found) <= NEARLY_STATIONARY))
            onwards = careful & good(found.result) & ~_rests(risk, found, conserved)
            again = short | onwards | left_again(risk, found, conserved)
            # Without another method what multipliers lost stays open: it is `going` without an end.
            over = lost if not pairs else lost & ~remain
            going = again | lost
            count = jnp.where(over, ROUNDS, count + 1)
            return moved, past, kept, count, going, closer, lost

        carry = (arrays, past, empty, zero, jnp.asarray(True), no, no)
        _, past, last, _, going, _, _ = jax.lax.while_loop(lambda c: c[4] & (c[3] < ROUNDS), body, carry)
        return with_past(eqx.combine(last, fixed), past, going)


def _off_the_path(further: Trajectory) -> Bool[Array, ""]:
    """Whether a stretch by multipliers is much longer than the weights at its end. Those of the flow grow like its
    length there; a step that ends on another branch undoes them (from e^17 to e^3, seen with two hidden halves)."""
    return further.final.log_norm < further.final.log_arc_length + jnp.log(0.1)


def _unit(path: Trajectory, length: Array) -> Float[Array, ""]:
    """The length so far, or the size of the weights where they have not moved that far yet."""
    return jnp.exp(jnp.logaddexp(jnp.logaddexp(length, path.final.log_arc_length), path.final.log_norm))


def _known(risk: EmpiricalRisk, model: Any, conserved: Any) -> AbstractCoordinates:
    found = coordinates_of(risk, model, conserved)
    if found is None:
        raise ValueError("model: rounds need one-layer attention with a linear head and its own trainable parameters")
    return found


class _If(AbstractStop):
    """Always, or never."""

    wanted: Bool[Array, ""]

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        return self.wanted


class _Unsettled(AbstractStop):
    """Where a token is neither selected nor masked, or none is masked."""

    def __call__(self, situation: Situation) -> Bool[Array, ""]:
        data: Any = situation.risk.data
        return ~settled(situation.attention(), data.visible)


def _still(model: Any) -> AbstractStop:
    def point(tolerance: float) -> AbstractStop:
        return StationaryPoint(tolerance, model.degree, pairs=has_pairs(model))

    return point(SETTLED_STATIONARY) | (point(STATIONARY) & _Unsettled())


def _saturated(risk: EmpiricalRisk, path: Trajectory) -> Bool[Array, ""]:
    attention = path.final.model.attention(risk.data)
    return jnp.all(jnp.max(attention, axis=-1) >= 1.0 - LEAVING)


def _rests(risk: EmpiricalRisk, path: Trajectory, conserved: Any) -> Bool[Array, ""]:
    return rests(risk, path, conserved, stationarity(path))


def ended(risk: EmpiricalRisk, path: Trajectory, conserved: Any = None) -> Bool[Array, ""]:
    """Whether an explicit stretch leaves nothing to multipliers: stationary, failed, or not saturated."""
    return ~good(path.result) | _rests(risk, path, conserved) | ~_saturated(risk, path)


def left_again(risk: EmpiricalRisk, path: Trajectory, conserved: Any = None) -> Bool[Array, ""]:
    """Whether a round ended between selections, so that another one is due.

    Attention is between tokens, or the multipliers that pull away from the selected ones have more than the share
    `PULL`: a direction at rest between those and the others repels, and only a long implicit step can come to it.
    """
    attention, multipliers = path.final.model.attention(risk.data), path.final.multipliers
    top = attention == jnp.max(attention, axis=-1, keepdims=True)
    pull = jnp.where(top, 0.0, jnp.asarray(multipliers))
    pulled = jnp.sum(jnp.maximum(-pull, 0.0)) > PULL * jnp.sum(jnp.abs(pull))
    return good(path.result) & ~_rests(risk, path, conserved) & (~_saturated(risk, path) | pulled)


def added(past: tuple[Any, Any, Any], path: Trajectory) -> tuple[Any, Any, Any]:
    """log t, log arc length and the numbers of steps after another round."""
    log_time, length, counts = past
    final = path.final
    counts = {name: counts[name] + path.stats[name] for name in counts}
    return jnp.logaddexp(log_time, final.log_time), jnp.logaddexp(length, final.log_arc_length), counts


def with_past(path: Trajectory, past: tuple[Any, Any, Any], going: Bool[Array, ""]) -> Trajectory:
    """The last round as the end of the whole path; one that is still `going` has used up its rounds."""
    log_time, length, counts = past
    # Where log t overflows, what was before does not count.
    log_log_time = jnp.where(jnp.isinf(log_time), path.final.log_log_time, jnp.log(jnp.maximum(log_time, 0.0)))
    final = eqx.tree_at(
        lambda p: (p.log_time, p.log_log_time, p.log_arc_length), path.final, (log_time, log_log_time, length)
    )
    return unfinished(Trajectory(final, path.saved, path.regime, path.result, counts), going)


def unfinished(path: Trajectory, going: Bool[Array, ""]) -> Trajectory:
    """A path after the last round that is allowed: where it is still `going`, its budget is spent."""
    spent: Any = RESULTS.max_steps_reached
    return eqx.tree_at(lambda p: p.result, path, RESULTS.where(going & good(path.result), spent, path.result))
