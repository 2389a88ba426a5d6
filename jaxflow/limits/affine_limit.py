r"""The limit of a model that is affine in its trained parameters, under a convex loss with an exponential tail.

The recession cone of the data (`jaxflow.margin.recession`) decides what kind of limit there is, and proves it:

- no direction: the loss has one minimum on the affine space $\theta_0+\mathrm{span}(a_k)$ of the flow, and the flow of
  a convex function tends to it;
- some direction: the margins of the rows D diverge, and those of the rows S tend to the minimum of their own
  loss (Ji and Telgarsky 2019, Theorem 2.1). The direction is $\min\|w\|$ s.t. $a_k^\top w\ge1$ on D, $a_k^\top w=0$ on
  S (Soudry et al. 2018, Theorem 3, where S is empty); the path adds it to that minimum.

The flow is followed until the excess of its own velocity over the optimum of that program is below the gap.

Of mirror flow (`jaxflow.limits.affine_mirror`) the first case holds where the loss has one minimum among all
parameters, and the second one, with the norm of the potential, where all margins diverge. Nothing else is decided.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxflow._core import RESULTS, Code, Outcome, is_affine, positive_or_one
from jaxflow.limits.affine_flow import REST, RTOL, AbstractFrame, AffineFlow, Path, frame_of, path_of
from jaxflow.limits.affine_mirror import mirror_frame
from jaxflow.limits.affine_rest import Rest, rest_of
from jaxflow.limits.affine_theorems import theorem_of
from jaxflow.limits.kantorovich import flat
from jaxflow.limits.limit import Limit, Rate
from jaxflow.limits.model_direction import SHARE_OF_GAP, held_against
from jaxflow.limits.model_facts import KKTPoint, LinearFacts, ModelFacts, StationaryFacts
from jaxflow.limits.outcome import decided
from jaxflow.limits.path import COUNTS
from jaxflow.limits.stages import LARGEST_POINT_ERROR, LOG_TIME
from jaxflow.limits.steps import IMPLICIT_STEPS
from jaxflow.limits.units import exponent_of, power_of_two
from jaxflow.limits.verdict import above, with_the_better_bound
from jaxflow.losses import self_concordance
from jaxflow.margin import Certificate, ProgramResult, RecessionCone, Solution, certify, recession_cone, solve
from jaxflow.margin.linear import MaxMarginProgram
from jaxflow.margin.norms import AbstractNorm, Lp, Schatten
from jaxflow.margin.potential import potential_of
from jaxflow.margin.recession import null_space, orthonormal_columns
from jaxflow.margin.thin import ThinMargin, thin_margin
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Prediction
from jaxflow.trajectory import Point, Regime, Trajectory

# An excess is of second order in the direction, and of higher order in entries that are small where p > 2: of a mirror
# flow the distance from the direction of the program counts as well, which may be the gap to this power.
APART = 0.75


class _Problem(NamedTuple):
    """The flow in an orthonormal basis V `(p, m)` of a space that it stays in, lengths in units in which rows have
    norms of one. `start` θ_0, and `unravel` from θ to a model. `growing`, `still`: the margins that diverge and those
    that converge; neither is one of +∞. `leading`: the heaviest datum of each output, which `LinearFacts` describes.
    `mirror`: whether it is no gradient flow."""

    risk: EmpiricalRisk
    start: Float[Array, " p"]
    unravel: Callable[[Array], Any]
    flow: AffineFlow
    basis: Float[Array, "p m"]
    unit: Float[Array, ""]
    cone: RecessionCone
    growing: Bool[Array, " n"]
    still: Bool[Array, " n"]
    away: Float[Array, "m m"]
    program: MaxMarginProgram
    best: ThinMargin | Solution
    leading: Int[Array, " i"]
    mirror: bool

    def outside(self, x: Float[Array, " m"]) -> Float[Array, " p"]:
        """A point of the span in the units of the parameters."""
        return self.basis @ x / self.unit

    def trained(self, theta: Float[Array, " p"]) -> PyTree:
        """The trained parameters of a model."""
        model = self.unravel(theta)
        return eqx.filter(model, self.risk.filter(model))


def is_linear(risk: EmpiricalRisk, model: Any) -> bool:
    """Whether the model's outputs are affine in its trained parameters, and its loss convex with an exponential tail.

    Read off the program of the outputs: the same answer for a traced model.
    """
    theta, unravel = flat(risk, model)
    real = jnp.issubdtype(theta.dtype, jnp.floating)
    convex = real and self_concordance(risk.loss) is not None
    return convex and is_affine(lambda x: risk.source.outputs(unravel(x)).reshape(-1), theta)


def affine_limit(risk: EmpiricalRisk, model: Any, gap: float, max_steps: int, ruled: Any, norm: Any) -> Limit:
    """The limit of such a flow. `ruled`: the prediction of the rule registered for the model's class, see
    `jaxflow.limits.model_direction`. `norm`: of the potential of the mirror flow, Frobenius for gradient flow."""
    theta, unravel = flat(risk, model)
    # A Schatten norm is of the one matrix that is trained.
    shape = jax.tree.leaves(eqx.filter(model, risk.filter(model)))[0].shape if isinstance(norm, Schatten) else (-1,)
    problem = _problem_of(risk, theta, unravel, norm, shape)
    flow, growing, mirror = problem.flow, problem.growing, problem.mirror
    budget = min(max_steps, IMPLICIT_STEPS)
    bend = self_concordance(risk.loss)
    assert bend is not None

    best = problem.best
    if mirror:
        potential = potential_of(norm, shape)
        frame: AbstractFrame = mirror_frame(flow, potential, best, theta * problem.unit, growing)
    else:
        frame = frame_of(flow, best.primal, growing, problem.away)
    # The distance of a mirror flow's velocity falls by a power of s: the path ends where the claim holds.
    share = 0.5 if mirror else SHARE_OF_GAP
    nearest = (share * gap) ** (APART if mirror else 1.0)
    optimum = certify(problem.program, _shaped(problem.program, best.primal), best.dual).dual_value

    def certified(s: Array, velocity: Array) -> Array:
        # The excess is of second order in the direction, which is to be as close.
        close = jnp.linalg.norm(_unit(velocity) - _unit(best.primal)) <= nearest
        return (s > REST) & close & (_excess(velocity, problem.program, optimum) <= share * gap)

    # Where nothing grows the path is over when margins rest. A mirror flow is followed where all margins grow.
    grows = jnp.all(growing) if mirror else jnp.any(growing)
    # Small entries of w, of size a, come to their place at s = a^(1 - p); for p < 2 directions turn like s^(2 - 2p).
    slower = max(norm.p - 1.0, 1.0 / (norm.p - 1.0)) if mirror else 1.0
    until = jnp.where(grows, slower * LOG_TIME, jnp.log1p(jnp.asarray(REST, theta.dtype)))
    path = path_of(frame, until, budget, certified)
    rest = rest_of(flow, problem.still, problem.away, bend)
    return _concluded(problem, path, frame, rest, optimum, gap, ruled)


def _problem_of(
    risk: EmpiricalRisk, theta: Float[Array, " p"], unravel: Any, norm: AbstractNorm, shape: tuple[int, ...]
) -> _Problem:
    def margins(x: Array) -> Array:
        return risk.margins(unravel(x)).reshape(-1)

    offsets = margins(theta)
    weights = risk.weights(unravel(theta)).reshape(-1)
    group = offsets.size // weights.size
    n, p = offsets.size, theta.size
    # Over a class whose output is -inf the margin is +inf whatever the parameters. A datum of one class has no loss.
    absent = jnp.isposinf(offsets)
    alone = jnp.all(absent.reshape(-1, group), axis=1)
    offsets = jnp.where(jnp.repeat(alone, group), 0.0, offsets)
    weights = jnp.where(alone, 0.0, weights)

    def moving(x: Array) -> Array:
        return jnp.where(absent, 0.0, margins(x))

    rows = (jax.jacfwd if p <= n else jax.jacrev)(moving)(theta)
    unit = power_of_two(exponent_of(rows))
    rows = rows / unit
    # The flow stays in the span of the rows: a basis of it, where they are fewer than the parameters. Zero beyond their
    # rank: a direction that only roundings make would be one of data to the cone, in which the scale of none matters.
    # The norm of a mirror flow is one of all parameters.
    mirror = isinstance(norm, Lp | Schatten)
    whole = p <= n or mirror
    basis = jnp.eye(p, dtype=theta.dtype) if whole else orthonormal_columns(rows.T)[0]
    inner = rows @ basis
    # Shapes are fixed: in the cone absent margins repeat the first one that is not.
    cone = recession_cone(jnp.where(absent[:, None], inner[jnp.argmin(absent)][None, :], inner))
    growing, still = cone.growing & ~absent, ~(cone.growing | absent)
    eye = jnp.eye(inner.shape[1], dtype=theta.dtype)
    # A point of a mirror flow is one of all parameters, of which none is away.
    away = 0.0 * eye if mirror else jax.lax.cond(jnp.any(still), lambda: null_space(inner, still), lambda: eye)
    projected = jnp.where(growing[:, None], inner if mirror else (inner @ away.T) @ away, 0.0)
    if not mirror:
        best: Any = thin_margin(projected, growing, cone.direction)
    else:
        best = solve(_margins_of(projected, norm, shape))
        best = eqx.tree_at(lambda b: b.primal, best, best.primal.reshape(-1))
        # Powers of w are of order one where w is.
        size = power_of_two(exponent_of(best.primal[None]))
        unit, inner, projected = unit / size, inner * size, projected * size
        best = eqx.tree_at(lambda b: (b.primal, b.dual), best, (best.primal / size, best.dual / size))
    # In the program the rows that do not grow repeat the one whose margin is the largest.
    largest = jnp.argmax(jnp.where(growing, projected @ best.primal, -jnp.inf))
    repeated = jnp.where(growing[:, None], projected, projected[largest][None, :])
    program = _margins_of(repeated, norm, shape)
    own = Partial(_in_units, jax.linearize(moving, theta)[1], unit)
    products = own if whole else Partial(jnp.matmul, inner)
    flow = AffineFlow(risk.loss, inner, products, offsets, weights, group)
    each = weights.reshape(jax.eval_shape(risk.losses, unravel(theta)).size, -1)
    leading = jnp.arange(len(each)) * each.shape[1] + jnp.argmax(each, axis=1)
    facts = flow, basis, unit, cone, growing, still, away, program, best, leading, mirror
    return _Problem(risk, theta, unravel, *facts)


def _margins_of(rows: Float[Array, "n m"], norm: AbstractNorm, shape: tuple[int, ...]) -> MaxMarginProgram:
    inputs = rows.reshape(len(rows), *shape)
    return MaxMarginProgram(norm=norm, inputs=inputs, labels=jnp.ones_like(rows[:, 0]), transform=None)


def _rows(program: MaxMarginProgram) -> Float[Array, "n m"]:
    return program.inputs.reshape(len(program.inputs), -1)


def _shaped(program: MaxMarginProgram, point: Float[Array, " m"]) -> Float[Array, "..."]:
    return point.reshape(program.inputs.shape[1:])


def _in_units(products: Any, unit: Float[Array, ""], x: Float[Array, " m"]) -> Float[Array, " n"]:
    return products(x) / unit


def _relative(error: Float[Array, ""], size: Float[Array, ""]) -> Float[Array, ""]:
    """A bound for an error relative to the true size, which is `size` less the error at least."""
    return jnp.where(size > error, error / positive_or_one(size - error), jnp.inf)


def _excess(velocity: Float[Array, " m"], program: MaxMarginProgram, optimum: Float[Array, ""]) -> Float[Array, ""]:
    """How far a direction is above the optimum of the program, relative to it."""
    margin = jnp.min(_rows(program) @ velocity)
    return above(
        jnp.where(margin > 0, program.norm(_shaped(program, velocity)) / positive_or_one(margin), jnp.inf), optimum
    )


def _concluded(
    problem: _Problem, path: Path, frame: Any, rest: Rest, optimum: Float[Array, ""], gap: float, ruled: Any
) -> Limit:
    risk, theta, outside, mirror = problem.risk, problem.start, problem.outside, problem.mirror
    cone, program, growing, still = problem.cone, problem.program, problem.growing, problem.still
    some = jnp.any(growing)
    known = cone.separability.value != 0
    velocity, pushes = path.velocity, path.pushes
    own = certify(program, _shaped(program, velocity), pushes, "flow")
    solution = _solution(program, problem.best, some)
    excess = jnp.where(some, _excess(velocity, program, optimum), jnp.inf)
    solved = jnp.abs(solution.certificate.duality_gap) <= gap
    kkt = _kkt(program, velocity, jnp.where(growing, pushes, 0.0))
    certified = known & some & (path.s > REST) & solved & (excess <= gap)
    if mirror:
        apart = jnp.linalg.norm(_unit(velocity) - _unit(problem.best.primal))
        certified = certified & jnp.all(growing) & (apart <= gap**APART)
        # In the frame of w a path that roundings have stopped has the velocity w as well: the multipliers must make
        # it, to the tolerance of the path.
        certified = certified & (kkt.residual <= RTOL)

    end = jnp.where(some, frame.length(path.s) * frame.growth + frame.beside(path.s, path.r), rest.point)
    quasi = some & jnp.any(still)
    # The start has a part in the span, too.
    begun = problem.basis.T @ (theta * problem.unit)
    size = jnp.linalg.norm(begun + rest.point)
    # Whatever was seen of the path: a convex loss with a minimum has no other limit. A minimum may be zero.
    proved = known & (rest.error <= LARGEST_POINT_ERROR * jnp.maximum(size, 1.0))
    rests = ~some & proved
    if mirror:
        # Of many minima the one that is nearest in the divergence of the potential is the limit: no bound is known.
        rests = rests & (rest.rank == theta.size)

    unit = _unit(outside(velocity))
    theorem = theorem_of(risk, problem.unravel(theta), program.norm, problem.flow.group > 1)
    prediction: Any = Prediction(program, theorem, ())
    optimal, contradicted = Outcome.globally_optimal, False
    certificate = with_the_better_bound(own, solution.certificate)
    if ruled is not None:
        prediction, solution, excess = ruled(problem.unravel(unit))
        optimal, contradicted = held_against(certified, solution, excess, gap)
    kind, outcome = decided(rests=rests, contradicted=contradicted, certified=certified, optimal=optimal)

    trajectory = _trajectory(problem, path, frame, end)
    facts = StationaryFacts(
        eigenvalue=rest.eigenvalue * problem.unit**2,
        rank=rest.rank,
        error=jnp.where(rests, _relative(rest.error, size), jnp.inf),
        distance=jnp.where(rests, rest.error / problem.unit, jnp.inf),
    )
    # Nor does an absent class keep a share.
    pairs = ~still.reshape(-1, problem.flow.group)
    least = begun - problem.away.T @ (problem.away @ begun) + rest.point
    component = jnp.where(proved, outside(least), jnp.nan)
    bounds = _relative(rest.error, jnp.linalg.norm(least)), rest.error / problem.unit
    multipliers: Any = trajectory.final.multipliers
    total = jnp.sum(multipliers)
    gradient = jnp.linalg.norm(problem.flow.rows.T @ multipliers)
    margin = jnp.min(jnp.where(growing, _rows(program) @ (problem.basis.T @ unit), jnp.inf)) * problem.unit
    if mirror:
        margin = margin / program.norm(_shaped(program, unit))
    # Along the start a mirror flow has a rate of its own.
    slow = mirror and frame.exponent < 2.0
    return Limit(
        kind=kind,
        outcome=outcome,
        flow_direction=problem.trained(jnp.where(some, unit, theta + outside(end))),
        end=trajectory.final.model,
        certificate=certificate,
        flow_certificate=own,
        stationarity=gradient / positive_or_one(total),
        prediction=prediction,
        program_solution=solution,
        excess=jnp.where(some, excess, jnp.inf),
        rate=Rate(jnp.where(certified & (not slow), 1.0, jnp.nan)),
        trajectory=trajectory,
        details=ModelFacts(
            margin=jnp.where(some, margin, jnp.nan),
            degree=jnp.ones((), theta.dtype),
            homogeneity=jnp.zeros((), theta.dtype),
            kkt=kkt,
            flow_kkt=kkt,
            stationary=facts,
            linear=LinearFacts(
                separability=cone.separability,
                growing=growing if problem.flow.group == 1 else pairs[problem.leading],
                component=problem.trained(jnp.where(quasi, component, 0.0)),
                error=jnp.where(quasi, jnp.where(proved, bounds[0], jnp.inf), 0.0),
                distance=jnp.where(quasi, jnp.where(proved, bounds[1], jnp.inf), 0.0),
                steps=cone.steps,
            ),
        ),
    )


def _solution(program: MaxMarginProgram, best: ThinMargin | Solution, some: Bool[Array, ""]) -> Solution:
    primal = _shaped(program, best.primal)
    certificate: Certificate = certify(program, primal, best.dual)
    # Of no rows there is no program.
    code = jnp.where(jnp.abs(certificate.duality_gap) <= 1e-10, ProgramResult.optimal.value, ProgramResult.failed.value)
    code = jnp.where(some, code, ProgramResult.not_run.value)
    steps = best.iterations if isinstance(best, Solution) else best.steps
    return Solution(primal, best.dual, certificate, Code(code, ProgramResult), steps)


def _kkt(program: MaxMarginProgram, velocity: Float[Array, " m"], pushes: Float[Array, " n"]) -> KKTPoint:
    """The conditions at the velocity's direction, with the multipliers that make it: only their complementarity is
    not met."""
    rows = _rows(program)
    margins = rows @ velocity
    margin = positive_or_one(jnp.min(margins))
    psi, weights = velocity / margin, pushes / margin
    if isinstance(program.norm, Lp | Schatten):
        # Of ψ in the dual variable, of any size.
        psi = potential_of(program.norm, program.inputs.shape[1:]).map(psi)
        pushed = positive_or_one(jnp.linalg.norm(rows.T @ weights))
        weights = weights * jnp.linalg.norm(psi) / pushed
    left = jnp.linalg.norm(psi - rows.T @ weights) / positive_or_one(jnp.linalg.norm(psi))
    slack = jnp.max(weights * jnp.maximum(margins / margin - 1.0, 0.0)) / positive_or_one(jnp.sum(weights))
    return KKTPoint(left, slack, weights)


def _trajectory(problem: _Problem, path: Path, frame: Any, end: Float[Array, " m"]) -> Trajectory:
    """The end of the path as a trajectory; lengths are not integrated along it."""
    flow, theta = problem.flow, problem.start + problem.outside(end)
    # Margins at the end, without the roundings of a sum of large numbers.
    some = jnp.any(problem.growing)
    away = jnp.where(some, frame.beside(path.s, path.r), end)
    margins = jnp.where(some, frame.pace * frame.length(path.s), 0.0) + flow.offsets + flow.rows @ away
    log_slopes = flow.log_slopes(margins)
    scale = jnp.max(log_slopes)
    multipliers = jnp.exp(log_slopes - scale)
    speed, _ = frame.velocity(path.s, path.r)
    push = jnp.where(some, speed, flow.rows.T @ multipliers)
    top = jnp.max(jnp.where(problem.growing, frame.exponents(path.s, path.r), -jnp.inf))
    size = jnp.linalg.norm(push)
    log_size = jnp.where(some, jnp.where(jnp.isfinite(top), top, 0.0) - path.s - frame.log_unit, scale) + jnp.log(size)
    power = 2.0
    if problem.mirror:
        power, push = frame.exponent, jnp.where(some, path.velocity, push)
    log_time = path.s + jnp.log(-jnp.expm1(-path.s)) + frame.log_unit - power * jnp.log(problem.unit)
    names: Any = RESULTS
    result = names.where(~path.done, names.max_steps_reached, names.successful)
    final = Point(
        model=problem.unravel(theta),
        log_time=log_time,
        log_log_time=jnp.log(jnp.maximum(log_time, 0.0)),
        log_arc_length=jnp.full_like(log_time, jnp.nan),
        log_norm=jnp.log(jnp.linalg.norm(theta)),
        log_scale=scale,
        log_gradient_norm=log_size + jnp.log(problem.unit),
        velocity=problem.trained(problem.basis @ push / positive_or_one(jnp.linalg.norm(push))),
        multipliers=multipliers,
        reached=jnp.asarray(True),
    )
    counts = path.steps, path.steps - path.rejected, path.rejected, jnp.zeros_like(path.steps)
    return Trajectory(final, None, Code(Regime.exact, Regime), result, dict(zip(COUNTS, counts, strict=True)))


def _unit(x: Array) -> Array:
    return x / positive_or_one(jnp.linalg.norm(x))
