"""Flows of diagonal weights in both parametrisations to log t = 1e6, with all quantities of App. A.2–A.5."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxflow._core import RESULTS, Outcome, SelectionStatus, positive_or_one
from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.limits import find_limit, flow_certificate
from jaxflow.limits.rate import off_support
from jaxflow.losses import Exponential
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import DiagonalAttention, token_scores
from jaxflow.papers.experiment import Dataset, Part, Table, arrays_of
from jaxflow.papers.sheen2024.accumulated import LOG_TIMES, RTOL, accumulate
from jaxflow.papers.sheen2024.diagonal import (
    PlusMinusAttention,
    averaged_residuals,
    behind_face,
    integral_form,
    unbalanced_start,
)
from jaxflow.papers.sheen2024.instances import equal_score_tokens
from jaxflow.papers.sheen2024.separability import assumption_2, assumption_3, score_gap_needed
from jaxflow.risk import EmpiricalRisk
from jaxflow.study import settled_selections, subkey

# Earlier than this there is nothing to tell apart, and a logarithmic axis has no place for it.
FIRST = 0.5
# Differences that rounding made zero are drawn at rounding.
ROUNDING = 1e-17
# n, L, d of what is followed to full accuracy, and the margin of the diagonal planted there: every instance is
# separable by a diagonal W, by construction.
SHAPE = (3, 4, 4)
MARGIN = 0.1
OMEGAS = (1.0, 0.1, 1e-3)
TRIALS = {"quick": 8, "paper": 32, "large": 2048}
# Attention on the optimal token at log t = 1e6: it is selected, or it is not, far from these on either side.
SELECTED, LEFT = 1.0 - 1e-6, 1e-6


def setting(n: int, T: int, d: int, multiple: float, omega: float, **more: Any) -> Table:
    r"""Instances of one kind, which share their compiled program with all of their shape.

    `multiple` of the gap that Assumption 3 needs, $\omega_0$, common to all coordinates, `spread` of the other scores
    (relaxed Assumption 2), and the `margin` of a planted diagonal (`equal_score_tokens`); or, with `random`, tokens and
    head uniform on the unit sphere (`random_tokens`), whose scores are all different and whose gaps are far below what
    Assumption 3 needs. `both`: follow $(w_+,w_-)$ too; `rtol`: of the integration.
    """
    given = Table(n=n, T=T, d=d, multiple=multiple, omega=omega, spread=0.0, margin=-np.inf, random=False)
    given = Table(given.named, both=False, rtol=RTOL).replace(**more)
    return arrays_of(given, "multiple", "omega", "spread", "margin", "random")


def hypotheses_of(flows: Table) -> np.ndarray:
    """Who is inside Theorem 4.1: Assumptions 2 and 3, and an ℓ1-SVM that is feasible.

    The existence of the limit is not asked for: it is measured.
    """
    return np.asarray((flows.equal >= 0) & (flows.small >= 0) & (flows.diagonal > 0))


def inside_of(flows: Table) -> np.ndarray:
    """Of those the ones whose program was solved and whose flow was followed."""
    return hypotheses_of(flows) & np.asarray((flows.result == ProgramResult.optimal.value) & flows.ok)


def draw(setting: Table, key: Any) -> tuple[TokenData, Array, Array]:
    r"""Data, head, and $\omega_0$ `(d,)`."""
    gap, key = setting.multiple * score_gap_needed(setting.n, setting.T), subkey(key, "data")
    shape = (setting.n, setting.T, setting.d)
    kinds = (
        equal_score_tokens(key, *shape, gap, setting.spread, setting.margin),
        random_tokens(key, *shape),
    )
    data, head = jax.tree.map(lambda equal, drawn: jnp.where(setting.random, drawn, equal), *kinds)
    return data, head, jnp.full(setting.d, setting.omega)


def follow(key: Any, setting: Table) -> Table:
    r"""The flow of one instance, at the m times `LOG_TIMES` where a field has that axis.

    - `diagonal`, `equal`, `small`: slacks of diagonal separability (which implies Assumption 1) and of Assumptions 2
      and 3. `ok`: whether the integrations reached their ends.
    - `apart`: $\max_j|\beta_j-w_j|/\|\beta\|_\infty$ of the flows of $(\xi_k,\xi_q)$ and $(w_+,w_-)$ (NaN
      unless both were followed); `identity`: the same for β and $\omega_0^{\odot2}\sinh(B\phi)$, (19).
    - `display`: $\max_j|\dot\beta_j-2\sqrt{\beta_j^2+\omega_0^4}\,(Bp)_j|/\|\dot\beta\|_\infty$, Lemma A.1.
    - `conserved`: the largest change of $\xi_k^{\odot2}-\xi_q^{\odot2}$, over $\|\beta\|_\infty$ + ω₀².
    - `size`, `margin`: $\|\beta\|_2$ and μ.
    - `selects`: 1 if at the last time the attention on every optimal token is 1 to 1e-6, −1 if some has less than 1e-6
      of it *and* the flow's own direction leaves it for good (`abandoned`) or the tokens selected instead are locally
      optimal, else 0.
    - `gap`: duality gap of the instantaneous multipliers; `stationarity`, `slackness`, `predicted`: residuals of the
      averaged ones.
    - `beta`, `coefficients`, `averaged`, `instantaneous`: β, w (NaN unless both were followed), and Bλ for the averaged
      multipliers (NaN while μ ≤ 1) and for the instantaneous ones, scaled to a largest entry of 1.
    - `result`, `program_gap`, `kappa`: the ℓ1-SVM of the optimal tokens, its certified gap, and κ; `weights_gap`:
      $\|\beta\|_1/(\mu\,\mathrm{opt})-1$.
    - `behind`: how far the flow is from the face of its limit at the last time (`behind_face`).
    """
    data, head, omega = draw(setting, key)
    # Which of the two factors starts at zero is drawn too: it must not matter.
    in_key = jax.random.bernoulli(subkey(key, "factor that starts at zero"), 0.5, (setting.d,))
    xi, w = unbalanced_start(omega, head, in_key)
    risk = EmpiricalRisk(data, Exponential())
    best = optimal_tokens(token_scores(data, xi.head), data.visible)
    times = jnp.asarray(LOG_TIMES)
    path = accumulate(risk, xi, times, rtol=setting.rtol)
    beta = path.models.k * path.models.q
    size = jnp.max(jnp.abs(beta), axis=-1)
    ok, coefficients = path.result == RESULTS.successful, jnp.full(beta.shape, jnp.nan)
    if setting.both:
        other = accumulate(risk, w, times, rtol=setting.rtol)
        coefficients = jax.vmap(PlusMinusAttention.coefficients)(other.models)
        ok = ok & (other.result == RESULTS.successful)
    program = attention_svm(data, best, "l1")
    formed = jax.vmap(lambda pushes: integral_form(program, omega, pushes))(path.pushes)
    drift = jax.vmap(DiagonalAttention.conserved)(path.models) - xi.conserved()[None]
    attention = jax.vmap(lambda model: jnp.min(jnp.where(best, model.attention(data), 1.0), axis=-1))(path.models)
    last = jax.tree.map(lambda x: x[-1], (path.models, path.gradients))
    left = abandoned(data, best, attention[-1] >= SELECTED, attention[-1] <= LEFT, *last)
    left = left | locally_optimal(data, xi.head, best, last[0].attention(data) >= SELECTED)
    return Table(
        **_against_the_program(program, omega, beta, path),
        ok=ok,
        apart=jnp.max(jnp.abs(beta - coefficients), axis=-1) / size,
        identity=jnp.max(jnp.abs(beta - formed), axis=-1) / size,
        conserved=jnp.max(jnp.abs(drift), axis=-1) / (size + setting.omega**2),
        size=jnp.linalg.norm(beta, axis=-1),
        selects=jnp.where(jnp.all(attention[-1] >= SELECTED), 1, jnp.where(left, -1, 0)),
        beta=beta,
        coefficients=coefficients,
        equal=assumption_2(data, head).slack,
        small=assumption_3(risk, xi).slack,
    )


def _against_the_program(program: Any, omega: Array, beta: Array, path: Table) -> dict[str, Any]:
    solution = solve(program)

    def certified(model: Any, gradient: Any, multipliers: Array) -> Array:
        velocity = jax.tree.map(lambda g: -g, gradient.gradient)
        return flow_certificate(program, model, velocity, multipliers)[0].duality_gap

    residuals = jax.vmap(lambda beta, pushes: averaged_residuals(program, omega, beta, pushes, solution.primal))(
        beta, path.pushes
    )
    mu = jax.vmap(lambda beta: jnp.min(program.margins(beta)))(beta)
    multipliers: Any = path.gradients.multipliers
    now = jax.vmap(program.adjoint)(multipliers)
    # Of the factors, and both on the gradient's own scale.
    slopes: Any = path.gradients.gradient
    speed = -(slopes.k * path.models.q + slopes.q * path.models.k)
    largest_speed = jnp.max(jnp.abs(speed), axis=-1)
    optimum = solution.certificate.primal_value
    solved, infeasible = solution.result == ProgramResult.optimal, solution.result == ProgramResult.infeasible
    value = jnp.sum(jnp.abs(beta), axis=-1) / positive_or_one(mu)
    named = ("averaged", "stationarity", "slackness", "predicted")
    return {name: getattr(residuals, name) for name in named} | {
        "margin": mu,
        "gap": jax.vmap(certified)(path.models, path.gradients, multipliers),
        "display": jnp.max(jnp.abs(speed - 2.0 * jnp.hypot(beta, (omega**2)[None]) * now), axis=-1) / largest_speed,
        "instantaneous": now / jnp.max(jnp.abs(now), axis=-1, keepdims=True),
        "result": solution.result.value,
        # As `jaxflow.theory.diagonal_separability`, from the program that is solved here anyway.
        "diagonal": jnp.where(solved, 1.0 / optimum, jnp.where(infeasible, 0.0, jnp.nan)),
        "program_gap": solution.certificate.duality_gap,
        "behind": behind_face(program, solution.dual, beta[-1]),
        "kappa": off_support(program, solution),
        "weights_gap": jnp.where(mu > 0, value / optimum - 1.0, jnp.inf),
    }


def locally_optimal(
    data: TokenData, head: Any, best: Bool[Array, "n T"], selected: Bool[Array, "n T"]
) -> Bool[Array, ""]:
    """Whether one token is `selected` in every sequence, not the `best` one everywhere, and these are locally optimal
    for the ℓ1-SVM (Definitions 2 and 4 of Tarzanagh et al. 2023): no flow that has come to them leaves them."""
    settled = jnp.all(jnp.sum(selected, axis=-1) == 1)
    chosen = jnp.where(settled, selected, best)
    local = is_locally_optimal(data, head, chosen, solve(attention_svm(data, chosen, "l1")))
    return settled & jnp.any(chosen & ~best) & (local.status == SelectionStatus.local)


def abandoned(
    data: TokenData,
    best: Bool[Array, "n T"],
    selected: Bool[Array, " n"],
    left: Bool[Array, " n"],
    model: Any,
    gradient: Any,
) -> Bool[Array, ""]:
    r"""Whether the flow leaves the optimal token of some sequence for good, by its own direction.

    Every sequence is `selected` or `left`, some are left, and for the velocity $\dot\beta$

    - it solves the ℓ1-SVM of the selected sequences alone, to a certified gap of 5%;
    - in each sequence that is left, the other tokens gain on the optimal one at least 1.1 times as fast as the optimal
      tokens do on the others in the selected ones, so that its push back vanishes against theirs.
    """
    program = attention_svm(data, best & selected[:, None], "l1")
    velocity = jax.tree.map(lambda g: -g, gradient.gradient)
    certificate, _ = flow_certificate(program, model, velocity, gradient.multipliers)
    speed = velocity.k * model.q + velocity.q * model.k
    gains = attention_svm(data, best, "l1").values(speed)
    slowest = jnp.min(jnp.where(selected[:, None] & ~best, gains, jnp.inf))
    losses = jnp.max(jnp.where(best, -jnp.inf, -gains), axis=-1)
    outruns = jnp.all(~left | (losses >= 1.1 * slowest))
    decided = jnp.all(selected | left) & jnp.any(left) & jnp.any(selected)
    return decided & outruns & (slowest > 0) & (certificate.duality_gap <= 0.05)


def follow_on(key: Any, setting: Table) -> Table:
    r"""The flow of one instance far beyond log t = 1e6, where `find_limit` ends.

    By then (limiting dynamics, to $\log\log t$ of some 600) constraints with small multipliers
    have become active: `gap`: the duality gap of the flow's own multipliers with its velocity (or weights); `log_time`:
    log t there; `optimal`: whether the optimal tokens are selected for good.
    """
    data, head, omega = draw(setting, key)
    # β(t) is the same whichever factor starts at zero.
    model, _ = unbalanced_start(omega, head)
    limit = find_limit(EmpiricalRisk(data, Exponential()), model, throw=False)
    # Which tokens, however close the direction has come: its gap stands beside it.
    chosen = settled_selections(limit.settled_outcome, limit.selection_status) == Outcome.globally_optimal
    return Table(
        gap=limit.flow_certificate.duality_gap, log_time=limit.trajectory.final.log_time, optimal=jnp.asarray(chosen)
    )


FLOWS = {f"omega_0={omega:g}": setting(*SHAPE, 1.1, omega, margin=MARGIN, both=True) for omega in OMEGAS}

DIAGONAL = Dataset(
    "sheen2024",
    "diagonal-flows",
    {
        "flows": Part(follow, FLOWS, TRIALS),
        "continued": Part(follow_on, dict(list(FLOWS.items())[:1]), TRIALS, instances="flows", way="on host"),
    },
)
