r"""The limit direction of any homogeneous model, with the KKT residual of the parameter-space margin problem.

For a loss with an exponential tail and margins homogeneous of degree L that gradient flow makes positive, every limit
point of $\theta/\|\theta\|$ is along a KKT point of $\min\frac12\|\theta\|^2$ s.t. $q_k(\theta)\ge1$: Lyu and Li (2020)
for locally Lipschitz models with a chain rule, by Clarke's subdifferential; the direction converges where the model is
definable (Ji and Telgarsky 2020), as networks of the usual parts are. Such a point need not be optimal.

The exact flow is followed until the loss is $e^{-100}$ (`jaxflow.limits.own_gears`). From there the exponents are 100
and more, and the limit is that of the hard-margin flow (`jaxflow.flow.hard_margin`), whose implicit steps slide along
kinks and reach any size of θ.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxflow._core import (
    RESULTS,
    Outcome,
    as_plain,
    checked,
    good,
    positive_or_one,
    require,
    tree_where,
)
from jaxflow._core.kinks import gated, kink_count
from jaxflow.data import TokenData
from jaxflow.flow import HardMarginState, hard_margin_flow
from jaxflow.limits.kantorovich import flat, kantorovich
from jaxflow.limits.limit import Limit, Rate
from jaxflow.limits.model_facts import KKTPoint, ModelFacts, StationaryFacts, is_homogeneous
from jaxflow.limits.model_point import MOST_HELD, MOST_WEIGHTS, is_long, is_worth_compiling, located_kinks, settle
from jaxflow.limits.outcome import decided
from jaxflow.limits.own_gears import OwnGears
from jaxflow.limits.path import Underway, broken, by_gears, under_way
from jaxflow.limits.self_certificate import select
from jaxflow.limits.stages import LARGEST_POINT_ERROR, LOG_LOSS, PATH_RTOL, STATIONARY, stationarity
from jaxflow.limits.verdict import ELSEWHERE, above, is_solved
from jaxflow.margin import AbstractNorm, Frobenius, Lp, Schatten, Solution, certify, solve
from jaxflow.margin.potential import check_potential
from jaxflow.models import AbstractAttention
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import Prediction, Rule

# The error of a path whose KKT point is still identified; directions of norm one are at most 2 apart.
LARGEST_ERROR = 0.5
# Directions, multipliers and residuals are asked for to a hundredth of the gap.
SHARE_OF_GAP = 1e-2
SCALINGS = (0.5, 2.0, 3.0)


@checked(positive=["degree", "rtol", "tolerance"], most={"rtol": 1.0}, least={"hard_margin_steps": 1})
class ModelStaged(eqx.Module):
    r"""How `find_limit` follows a model of your own.

    **Arguments:** `degree`: L, if the margins are known to be homogeneous of degree L in the trained parameters
    ($q(s\theta)=s^Lq(\theta)$; two for two layers without a last bias); None: `model.degree` if there is one, else it
    is measured. In both cases it is checked on a few scalings. `log_loss`: the log of the loss at which the hard-margin
    flow takes over. `rtol`: of the exact flow (None: 1e-6, or 1e-3 for models with too many kinks for steps to end on
    them; for a flow to a point the two tolerances 1e-5 and `gap`). `tolerance`, `hard_margin_steps`: of the hard-margin
    flow. `report`: see `find_limit`'s `progress`. `potential`: p of the mirror flow
    $\frac d{dt}\nabla\psi(\theta)=-\nabla L(\theta)$, $\psi(\theta)=\frac1p\|\theta\|_p^p$, p > 1, which is gradient
    flow for p = 2; others for models that are affine in their trained parameters; `jf.margin.Schatten(p)`: of singular
    values, $\psi(W)=\frac1p\sum_i\sigma_i(W)^p$, of one trained matrix. Separable data then have the direction of the
    max margin in that norm (Sun et al. 2022, 2023), read off the flow's velocity (for p < 2 off that of
    $\nabla\psi(\theta)$, mapped back), overlapping data the minimum of the loss where there is one alone; all other
    limits are `undecided`.

    **Example:**

    ```python
    logistic = jf.EmpiricalRisk((linear.inputs, linear.targets), "logistic")
    jf.find_limit(logistic, own, method=jf.ModelStaged())  # the default; ModelStaged(degree=2.0): a known degree
    ```
    """

    degree: float | None = None
    log_loss: float = LOG_LOSS
    rtol: float | None = None
    tolerance: float = 1e-4
    hard_margin_steps: int = 2048
    potential: float | Schatten = eqx.field(static=True, converter=as_plain, default=2.0)
    report: Callable[[str], None] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        require(self.log_loss < 0, "log_loss", f"expected a negative logarithm, got {self.log_loss}")
        check_potential("potential", self.potential)


def norm_of(method: ModelStaged) -> AbstractNorm:
    """Of the potential; Frobenius for gradient flow."""
    potential = method.potential
    p = potential.p if isinstance(potential, Schatten) else float(potential)
    return Frobenius() if p == 2 else potential if isinstance(potential, Schatten) else Lp(p)


class Margins(NamedTuple):
    """Margins of flat weights, which of them count, and of attention the tokens that they belong to."""

    function: Callable[[Float[Array, " p"]], Float[Array, " n"]]
    present: Bool[Array, " n"]
    selection: Bool[Array, "..."] | None


def _begun(
    risk: EmpiricalRisk, model: Any, method: ModelStaged, gap: float, max_steps: int, rule: Rule | None
) -> Underway:
    start, unravel = flat(risk, model)
    at_start = margins_of(risk, model, unravel)
    degree = degree_of(at_start, start, declared_degree(method, model))
    kinks = kink_count(at_start.function, start)
    most = located_kinks(risk, model, start.size) if kinks else 0
    problem = _gears(model, method, kinks, start.size <= MOST_WEIGHTS, most if most <= MOST_HELD else 0)
    # What is compiled holds the program of the rule: another rule is another one.
    return under_way((problem,), risk, model, max_steps, (model, method, gap, rule, degree))


def _concluded(one: Underway) -> Limit:
    risk, trajectory, located = one.risk, one.path, one.problems[0].located  # pyright: ignore
    model, method, gap, rule, (degree, deviation) = one.known
    final = trajectory.final
    theta, unravel = flat(risk, final.model)
    margins, pulls = _counted(margins_of(risk, final.model, unravel), final)
    fitted = (trajectory.result == RESULTS.event_occurred) & (final.log_scale < 0.5 * method.log_loss)
    homogeneous = is_homogeneous(deviation)
    path = hard_margin_flow(
        margins.function,
        theta,
        degree,
        present=margins.present,
        target=SHARE_OF_GAP * gap,
        tolerance=method.tolerance,
        max_steps=method.hard_margin_steps,
        idle=~(fitted & homogeneous),
        report=method.report,
    )
    # Tokens that pull away from the selected ones must be left behind: among the smallest margins they would win.
    behind = jnp.min(jnp.where(pulls, margins.function(path.state.weights), jnp.inf), initial=jnp.inf)
    found = path.converged & (behind > 1.0 + SHARE_OF_GAP)
    psi = jnp.where(found, path.state.weights, theta)
    unit = psi / positive_or_one(jnp.linalg.norm(psi))
    own, kkt = (
        eqx.tree_at(lambda k: k.residual, k, jnp.where(path.steps > 0, k.residual, jnp.inf))
        for k in (kkt_point(margins, path.first), kkt_point(margins, path.state))
    )
    limit_model = unravel(psi)
    prediction, solution, excess = predicted(rule, risk, model, limit_model)

    ratio = stationarity(trajectory.final)
    size = jnp.minimum(1.0, jnp.exp((jnp.maximum(degree, 1.0) - 1.0) * final.log_norm))
    # The Hessian of a loss is not to be had of many weights.
    few = theta.size <= MOST_WEIGHTS
    stationary = ~fitted & (ratio <= STATIONARY * size) & good(trajectory.result) & few
    rest, facts = theta, StationaryFacts()
    if few:
        rest, found_facts, _ = settle(risk, unravel, theta, final.log_time, jnp.ones(()), located)
        # A datum that activates no unit has a multiplier without a gradient, and the rest never converges: no bound
        # closes.
        stationary = stationary & (found_facts.error <= LARGEST_POINT_ERROR)
        # Nor is a channel to infinity a point, in which gradient and step of Newton are small in all units but its own.
        stationary = stationary & (kantorovich(risk, unravel, theta, located=located).bound <= 0.5)
        facts = tree_where(stationary, found_facts, facts)
    failed = broken(trajectory)
    # All three conditions: steps by products end at residuals alone, and margins and kinks follow.
    at_point = (kkt.residual <= gap) & (kkt.complementarity <= gap) & (kkt.kink_distance <= gap)
    certified = found & at_point & (path.error <= LARGEST_ERROR) & ~failed
    optimal, contradicted = held_against(certified, solution, excess, gap)
    kind, outcome = decided(
        broken=failed, rests=stationary, contradicted=contradicted, certified=certified, optimal=optimal
    )
    # Ties between margins of the exact flow fall like 1/log t whatever else does.
    speed = jnp.minimum(path.slack / degree, 1.0)
    return Limit(
        kind=kind,
        outcome=outcome,
        selection=margins.selection,
        flow_direction=eqx.filter(unravel(unit), risk.filter(model)),
        end=unravel(jnp.where(stationary, rest, theta)),
        excess=excess,
        program_solution=solution,
        stationarity=ratio,
        prediction=prediction,
        rate=Rate(jnp.where(found, speed, jnp.nan)),
        trajectory=trajectory,
        details=ModelFacts(
            margin=jnp.min(jnp.where(margins.present, margins.function(unit), jnp.inf)),
            degree=degree,
            homogeneity=deviation,
            kkt=kkt,
            flow_kkt=own,
            turned=jnp.where(found, jnp.linalg.norm(unit - theta / positive_or_one(jnp.linalg.norm(theta))), jnp.nan),
            path_error=path.error,
            growth=path.log_growth,
            stationary=facts,
        ),
    )


# The limit of a flow whose loss has an exponential tail.
direction_of = by_gears(_begun, _concluded, is_long)


def margins_of(risk: EmpiricalRisk, model: Any, unravel: Callable[[Array], Any]) -> Margins:
    r"""Those of the risk, in one row; of attention $a_{i\alpha_i}-a_{it}$ with α the top tokens of `model`."""
    data: Any = risk.data
    if isinstance(model, AbstractAttention) and isinstance(data, TokenData):
        logits = jnp.where(data.visible, model.logits(data), -jnp.inf)
        top = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1], dtype=bool)

        def gaps(row: Array) -> Array:
            a = unravel(row).logits(data)
            own = jnp.sum(jnp.where(top, a, 0.0), axis=-1, keepdims=True)
            return jnp.where(top, 0.0, own - a).reshape(-1)

        visible = jnp.broadcast_to(data.visible, top.shape)
        return Margins(gaps, (visible & ~top).reshape(-1), select(model.attention(data)))

    count = eqx.filter_eval_shape(risk.margins, model).size
    return Margins(lambda row: risk.margins(unravel(row)).reshape(-1), jnp.ones(count, bool), None)


def _counted(margins: Margins, final: Any) -> tuple[Margins, Bool[Array, " n"]]:
    """The margins that the loss pushes up, and those of attention that it pushes down (tokens of higher scores)."""
    pulls = jnp.zeros_like(margins.present)
    if margins.selection is not None:
        pulls = margins.present & (final.multipliers.reshape(-1) < 0)
    return margins._replace(present=margins.present & ~pulls), pulls


def declared_degree(method: ModelStaged, model: Any) -> float | None:
    inner = getattr(model, "rest", model)
    declared = getattr(inner, "degree", None) if method.degree is None else method.degree
    return None if declared is None else float(declared)


def degree_of(
    margins: Margins, like: Float[Array, " p"], declared: float | None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """L and the largest deviation from $q(sθ)=s^Lq(θ)$ at a random θ, relative to the largest margin."""
    # Homogeneity belongs to the model: at a start of zero, say, no margin shows it.
    theta = jax.random.normal(jax.random.key(0), like.shape, like.dtype)
    present = margins.present
    q = jnp.where(present, margins.function(theta), 0.0)
    top = jnp.max(jnp.abs(q))
    double = jnp.where(present, margins.function(2.0 * theta), 0.0)
    found = jnp.log2(jnp.linalg.norm(double) / positive_or_one(jnp.linalg.norm(q)))
    degree = found if declared is None else jnp.asarray(declared, theta.dtype)
    # A degree within rounding of a whole number is one.
    whole = jnp.round(degree)
    degree = jnp.where(is_homogeneous(jnp.abs(degree - whole)), whole, degree)
    off = [jnp.max(jnp.abs(jnp.where(present, margins.function(s * theta), 0.0) / s**degree - q)) for s in SCALINGS]
    deviation = jnp.max(jnp.stack(off)) / positive_or_one(top)
    usable = (top > 0) & jnp.isfinite(deviation) & (degree > 0)
    return jnp.where(usable, degree, 1.0), jnp.where(usable, deviation, jnp.inf)


def _gears(model: Any, method: ModelStaged, kinks: int, few: bool, most: int) -> OwnGears:
    smooth, located = kinks == 0, most > 0
    rtol = (PATH_RTOL if smooth or located else 1e-3) if method.rtol is None else method.rtol
    # Attention that saturates hands over to the hard-margin flow before it is stiff, and implicit steps factorise.
    stiff = located or (smooth and few and not isinstance(model, AbstractAttention))
    return OwnGears(
        log_loss=method.log_loss,
        rtol=rtol,
        kinked=not smooth,
        stiff=stiff,
        located=located,
        long=is_worth_compiling(most),
        report=method.report,
    )


def kkt_point(margins: Margins, state: HardMarginState) -> KKTPoint:
    """The conditions at a point, from nothing but its weights, multipliers and gates."""
    psi, multipliers, gates = state.weights, state.multipliers, state.gates

    def potential(psi: Array) -> Array:
        return jnp.dot(multipliers, jnp.where(margins.present, gated(margins.function, psi, gates).value, 0.0))

    q, switches, *_ = gated(margins.function, psi)
    largest = jnp.max(jnp.abs(switches), initial=0.0, where=jnp.isfinite(switches))
    sliding = (gates > 0) & (gates < 1)
    # A gate of one or zero on the wrong side counts as well: it is the gate of a point that far away.
    off = sliding | jnp.where(gates > 0.5, switches < 0, switches > 0)
    # Of the point at margin one, which is off by roundings, or by what a step was solved to.
    smallest = positive_or_one(jnp.min(jnp.where(margins.present, q, jnp.inf)))
    excess = jnp.where(margins.present, multipliers * jnp.maximum(q / smallest - 1.0, 0.0), 0.0)
    return KKTPoint(
        residual=jnp.linalg.norm(psi - jax.grad(potential)(psi)) / positive_or_one(jnp.linalg.norm(psi)),
        complementarity=jnp.max(excess, initial=0.0) / positive_or_one(jnp.sum(multipliers)),
        multipliers=multipliers,
        gates=gates,
        sliding=sliding,
        kink_distance=jnp.max(jnp.abs(switches), initial=0.0, where=off) / positive_or_one(largest),
    )


def predicted(
    rule: Rule | None, risk: EmpiricalRisk, model: Any, limit_model: Any
) -> tuple[Prediction | None, Solution | None, Float[Array, ""]]:
    """The program of the rule for this class, solved, and the excess of the flow's coefficients over its optimum."""
    nothing = jnp.asarray(jnp.inf)
    if rule is None:
        return None, None, nothing
    module = getattr(model, "module", model)
    prediction = rule(risk, module, None)
    solution = solve(prediction.program)
    there = getattr(limit_model, "module", limit_model)
    read = getattr(there, "linear_coefficients", getattr(there, "combined_weights", None))
    if read is None:
        return prediction, solution, nothing
    value = certify(prediction.program, read(), solution.dual).primal_value
    return prediction, solution, above(value, solution.certificate.dual_value)


def held_against(
    certified: Bool[Array, ""], solution: Solution | None, excess: Float[Array, ""], gap: float
) -> tuple[Array | int, Bool[Array, ""] | bool]:
    """What a certified KKT point is beside the program of a rule, where there is one: its outcome, and whether it
    contradicts the program."""
    if solution is None:
        return Outcome.kkt_point, False
    solved = is_solved(solution) & (jnp.abs(solution.certificate.duality_gap) <= gap) & certified
    optimal = jnp.where(solved & (excess <= gap), Outcome.globally_optimal.value, Outcome.kkt_point.value)
    return optimal.astype(jnp.uint8), solved & (excess > ELSEWHERE)
