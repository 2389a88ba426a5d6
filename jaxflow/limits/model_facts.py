"""What only a limit of a model without a known program has, and the sentence that it prints."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxflow._core import AbstractPrinted, Code, Outcome, tree_norm
from jaxflow._core.linalg import ROUNDED
from jaxflow.limits.limit import AbstractFacts, Limit, LimitKind, bare, excess_of, precision_note, unknown, when_of
from jaxflow.margin import Lp, Schatten, Separability
from jaxflow.trajectory import describe


class KKTPoint(AbstractPrinted):
    r"""How nearly a direction solves the first-order conditions of $\min\frac12\|\theta\|^2$ s.t. $q_k(\theta)\ge1$.

    At ψ, the direction scaled to margin one, with multipliers $\lambda\ge0$ and $h_k\in\partial q_k(\psi)$:

    - `residual`: $\|\psi-\sum_k\lambda_kh_k\|/\|\psi\|$, the ε of Lyu and Li's (ε, δ)-KKT points over the size of ψ.
    - `complementarity`: $\max_k\lambda_k(q_k(\psi)-1)/\sum_k\lambda_k$, their δ over that sum.
    - `multipliers` λ `(n,)`, one for each margin: for C classes n(C−1), datum by datum, classes in their order (for
      frequencies nC(C−1), see `jaxflow.losses.margins_of`).
    - `gates` `(g,)`: which element $h_k$ of Clarke's subdifferential was taken. A gate is the share of the active side
      of a kink (of a ReLU on one input, for example), and one or zero away from it; `sliding` marks the gates strictly
      between.
    - `kink_distance`: the largest $|z|$ on such a kink, relative to the largest switch; zero where there is none. The
      subdifferential is that of a point this close.
    """

    residual: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.asarray(jnp.inf))
    complementarity: Float[Array, ""] = eqx.field(default_factory=unknown)
    multipliers: Float[Array, " n"] = eqx.field(default_factory=lambda: jnp.zeros(0))
    gates: Float[Array, " g"] = eqx.field(default_factory=lambda: jnp.zeros(0))
    sliding: Bool[Array, " g"] = eqx.field(default_factory=lambda: jnp.zeros(0, bool))
    kink_distance: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))


class StationaryFacts(AbstractPrinted):
    r"""What is known of a limit point.

    - `residual`: the largest $|\ell'|$ where the flow was stopped (squared error: $|f(x_i)-y_i|$), relative to the
      largest at the start.
    - `eigenvalue`: smallest eigenvalue of the loss's Hessian (Gauss-Newton part where the data are interpolated) on its
      range, of dimension `rank`; NaN where that is zero.
    - `error`: of the point, relative to its norm: a bound for affine models, else an estimate. From a loss L with least
      eigenvalue μ the rest of the path is at most $\sqrt{2L/\mu}$ long (Polyak-Łojasiewicz). To it are added the length
      of Newton's steps, and a tenth of the distance between the ends at two tolerances (where pieces of model or loss
      meet all of it). +inf where there is no bound, for example where the point may be zero.
    - `drift`: how far the flow moves in the next e-fold of time, the largest share of a weight of itself: what modes
      that have not decayed leave of the gradient beyond roundings, times t. Along a channel to infinity some percent,
      at a rest zero or little more; NaN for an affine model.
    - `distance`: for an affine model, a bound for the absolute error of the part in the span of the data; else +inf.
    """

    residual: Float[Array, ""] = eqx.field(default_factory=unknown)
    eigenvalue: Float[Array, ""] = eqx.field(default_factory=unknown)
    rank: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros((), int))
    error: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.asarray(jnp.inf))
    distance: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.asarray(jnp.inf))
    drift: Float[Array, ""] = eqx.field(default_factory=unknown)


class LinearFacts(AbstractPrinted):
    r"""What is known only of the limit of a model that is affine in its trained parameters.

    - `separability`: the kind of the data; `growing` `(n,)`: the data whose margins diverge, as the recession cone
      proves (see `jaxflow.margin.recession_cone`). For C classes `(n, C-1)`: the margins over the other classes in
      their order, of which some may diverge and others not; for frequencies, the margins of the most frequent class.
    - `component`: trained parameters. For quasi-separable data the path tends to this point plus a multiple of the
      direction that diverges: the minimum of the loss of the data whose margins stay, in their span. Zero where all
      margins grow, or none. NaN where no minimum was proved. `error`: a bound for its relative error, +inf where it may
      be zero; `distance`: for its absolute one.
    - `steps`: of the interior-point method.
    """

    separability: Code
    growing: Bool[Array, "n *others"]
    component: PyTree
    error: Float[Array, ""]
    distance: Float[Array, ""]
    steps: Int[Array, ""]


class ModelFacts(AbstractFacts):
    r"""What only a limit of any other model has.

    Its `outcome` `kkt_point` reports that the direction is stationary for the parameter-space margin problem,
    $\min\frac12\|\theta\|^2$ s.t. $q_k(\theta)\ge1$. It need not be optimal, not even locally.

    - `margin`: $\min_kq_k(\theta/\|\theta\|)$ of the direction. `degree`: of homogeneity, as declared or found;
      `homogeneity`: the largest $|q_k(s\theta)-s^Lq_k(\theta)|/s^L\max|q|$ over a few scalings s of a random
      point.
    - `kkt_residual`: short for `kkt.residual`. `kkt`: of the limit direction. `flow_kkt`: of the direction of the exact
      flow at its end, with the multipliers and gates there. `support`: Booleans `(n,)`, the
      margins with a multiplier.
    - `turned`: how far the direction turned, in norm, between the exact flow's end and the limit; `path_error`: the
      sum of the errors of the steps on that part of the path, see `jaxflow.flow.HardMarginPath`. `growth`: the growth
      of log ρ along it.
    - `stationary`: for a limit point, see `StationaryFacts`; `error`: short for `stationary.error`.
    - `linear`: for a model that is affine in its trained parameters, `LinearFacts`; else None. Its program is the ℓ2
      max-margin one and its direction optimal, with no hard-margin flow (`turned`, `path_error` and `growth` are NaN).

    The `rate` of such a limit is that of the distance from it, $(\log t)^{-\text{exponent}}$. `prediction`,
    `program_solution` and `excess` are those of the rule registered for the model's class, where there is one.
    """

    gap_label: ClassVar[str] = "distance from the limit along the flow"
    draws_program: ClassVar[bool] = False
    stationary: StationaryFacts
    margin: Float[Array, ""] = eqx.field(default_factory=unknown)
    degree: Float[Array, ""] = eqx.field(default_factory=unknown)
    homogeneity: Float[Array, ""] = eqx.field(default_factory=unknown)
    kkt: KKTPoint = eqx.field(default_factory=KKTPoint)
    flow_kkt: KKTPoint = eqx.field(default_factory=KKTPoint)
    turned: Float[Array, ""] = eqx.field(default_factory=unknown)
    path_error: Float[Array, ""] = eqx.field(default_factory=unknown)
    growth: Float[Array, ""] = eqx.field(default_factory=unknown)
    linear: LinearFacts | None = None

    @property
    def kkt_residual(self) -> Float[Array, "..."]:
        r"""$\|\psi-\sum_k\lambda_kh_k\|/\|\psi\|$ of the limit direction."""
        return self.kkt.residual

    @property
    def error(self) -> Float[Array, "..."]:
        """The relative error of a limit point, see `StationaryFacts`."""
        return self.stationary.error

    @property
    def support(self) -> Bool[Array, "..."]:
        """Margins with a multiplier."""
        return self.kkt.multipliers > 0

    @property
    def component(self) -> PyTree | None:
        """The finite point to which a direction is added where some margins of a linear model stay; else None."""
        return None if self.linear is None else eqx.filter(bare(self.linear.component), eqx.is_array)

    def sentence(self, limit: Limit) -> str:
        outcome, when = Outcome(int(limit.outcome)), when_of(limit.trajectory)
        end = describe(limit.trajectory.result)
        if limit.linear is not None and limit.kind != LimitKind.direction:
            return _linear_sentence(limit, limit.linear, when, end)
        if limit.kind == LimitKind.point:
            return _point_sentence(limit, outcome, when)
        if limit.linear is not None:
            return f"{_linear_sentence(limit, limit.linear, when, end)} {_theory_sentence(limit, outcome)}"
        if limit.kind == LimitKind.none:
            return f"Undecided at {when} ({end}): {_what_is_open(limit)}{precision_note(limit)}"
        kkt = limit.kkt
        slides = int(jnp.sum(kkt.sliding))
        kinks = f", on {slides} kinks of the model" if slides else ""
        what = "min |theta|^2/2 s.t. every margin >= 1"
        parts = [
            f"The flow's direction tends to a KKT point of {what} (stationary, not necessarily optimal): residual "
            f"{float(kkt.residual):.1e}, margin {float(limit.margin):.3g} at norm one, "
            f"{int(jnp.sum(limit.support))} support vectors{kinks}.",
            f"The flow was followed to {when}, where its own residual was {float(limit.flow_kkt.residual):.1e}, and "
            f"from there as the hard-margin flow, to {float(limit.growth):.3g} more in log norm; its direction turned "
            f"by {float(limit.turned):.1e} meanwhile, and errors of steps add up to {float(limit.path_error):.0e}.",
        ]
        if limit.prediction is not None:
            parts.append(_theory_sentence(limit, outcome))
        return " ".join(parts)


def is_homogeneous(deviation: Float[Array, "*b"]) -> Bool[Array, "*b"]:
    """Whether a deviation from homogeneity is one of rounding: in single precision a hundred roundings are more."""
    return deviation <= max(ROUNDED, 100.0 * float(jnp.finfo(deviation.dtype).eps))


def _linear_sentence(limit: Limit, facts: LinearFacts, when: str, end: str) -> str:
    separability, count = Separability(int(facts.separability)), int(jnp.sum(facts.growing))
    if separability is Separability.unknown:
        return (
            f"Undecided at {when}: whether the loss of this linear model has a minimum was not proved, to the "
            f"roundings of its data.{precision_note(limit)}"
        )
    if separability is Separability.overlapping:
        found = limit.stationary
        if limit.kind == LimitKind.none:
            return (
                f"Undecided at {when} ({end}): the data overlap, so that the loss has a minimum, but no bound "
                f"on its position was found.{precision_note(limit)}"
            )
        return (
            f"{_flow_of(limit)} ends at a finite stationary point: the model is linear in its parameters, its data "
            f"overlap, and the loss has one minimum among the points that the flow can reach. {_error_of(found)}, the "
            f"Hessian has rank {int(found.rank)} and no eigenvalue below {float(found.eigenvalue):.2e} on its range; "
            f"the flow was followed to {when}."
        )
    what = "data" if facts.growing.ndim == 1 else "pairs of a datum and another class"
    data = f"all {what}" if separability is Separability.separable else f"{count} of {facts.growing.size} {what}"
    if limit.kind == LimitKind.none:
        return (
            f"Undecided at {when} ({end}): the loss of this linear model has no minimum, because the margins of {data} "
            f"diverge; the flow's direction was followed to an excess of {float(limit.excess):.1e} over the "
            f"optimum.{precision_note(limit)}"
        )
    beside = ""
    if separability is Separability.quasi_separable:
        size = tree_norm(eqx.filter(facts.component, eqx.is_array))
        error, distance = float(facts.error), float(facts.distance)
        found = f"a point of norm {float(size):.3g} (relative error at most {error:.1e})"
        if not np.isfinite(error):
            found = f"a point that is at most {2 * distance:.1e} away from zero"
        beside = (
            f" The other {what} are not separable: their margins stay, and the direction is added to the minimum of "
            f"their loss, {found if jnp.isfinite(facts.distance) else 'which was not found'}."
        )
    return (
        f"The loss of this linear model has no minimum: the margins of {data} diverge, and the flow's direction "
        f"is that of their largest margin, {float(limit.margin):.3g} at norm one.{beside} The flow was followed to "
        f"{when}."
    )


def _flow_of(limit: Limit) -> str:
    norm = limit.prediction.program.norm
    if not isinstance(norm, Lp | Schatten):
        return "Gradient flow"
    return f"Mirror flow with p = {norm.p:g}" + (" of singular values" if isinstance(norm, Schatten) else "")


def _error_of(point: StationaryFacts) -> str:
    """The bound for a minimum's error. One whose size is not above its error is as far from zero as twice that."""
    if np.isfinite(float(point.error)):
        return f"Its relative error is at most {float(point.error):.1e}"
    return f"Its part in the span of the data is at most {2 * float(point.distance):.1e} away from zero"


def _theory_sentence(limit: Limit, outcome: Outcome) -> str:
    numbers = excess_of(limit)
    if outcome is Outcome.prediction_contradicted:
        return f"It is not the optimum of the predicted program: {numbers}. {limit.prediction.sentence()}"
    if outcome is Outcome.globally_optimal:
        return f"It solves the predicted program: {numbers}. {limit.prediction.sentence()}"
    return f"Of the predicted program nothing was decided: {numbers}."


def _what_is_open(limit: Limit) -> str:
    if bool(jnp.isfinite(limit.stationary.residual)):
        return (
            f"the flow has not converged to a point: relative residual {float(limit.stationary.residual):.1e}, "
            f"|grad L| / sum |p| = {float(limit.stationarity):.1e}, smallest eigenvalue of the Hessian on its range "
            f"{float(limit.stationary.eigenvalue):.2e}; in the next e-fold of time weights "
            f"move by up to {float(limit.stationary.drift):.1e} of themselves."
        )
    fitted = float(limit.trajectory.final.log_scale)
    if not bool(jnp.isfinite(limit.homogeneity)):
        return (
            "its margins at a random point are all zero or not finite, so that homogeneity of the model cannot be "
            f"checked; at the end of the flow |grad L| / sum |p| is {float(limit.stationarity):.1e}."
        )
    if not bool(is_homogeneous(limit.homogeneity)):
        return (
            f"the model is not homogeneous of degree {float(limit.degree):.3g} in its trained parameters (scalings "
            f"disagree by {float(limit.homogeneity):.1e}), so no theorem on the limit of its direction applies. "
            f"The loss's slopes have fallen to e^{fitted:.3g}, |grad L| / sum |p| is {float(limit.stationarity):.1e}."
        )
    if not bool(jnp.isfinite(limit.kkt.residual)):
        return (
            "the data are not fitted so far that a limit direction could be followed: the loss's slopes are "
            f"e^{fitted:.3g}, and |grad L| / sum |p| is {float(limit.stationarity):.1e}."
        )
    return (
        f"the hard-margin flow from there stopped at a KKT residual of {float(limit.kkt.residual):.1e}, with an error "
        f"of about {float(limit.path_error):.0e} on its way."
    )


def _point_sentence(limit: Limit, outcome: Outcome, when: str) -> str:
    facts = limit.stationary
    size = float(tree_norm(eqx.filter(limit.end, eqx.is_inexact_array)))
    known = np.isfinite(float(facts.error))
    error = f"relative error about {float(facts.error):.1e}" if known else "relative error unknown"
    where = f"a point of norm {size:.3g}, {error} (relative residual {float(facts.residual):.1e} at {when})"
    hessian = f"the Hessian has rank {int(facts.rank)}"
    if np.isfinite(float(facts.eigenvalue)):
        hessian += f" and a smallest eigenvalue of {float(facts.eigenvalue):.2e} on its range"
    if outcome is Outcome.limit_point:
        return f"Gradient flow interpolates: its limit is {where}; {hessian}. It was not compared with a program."
    return f"Gradient flow ends at a finite stationary point, {where}; {hessian}."
