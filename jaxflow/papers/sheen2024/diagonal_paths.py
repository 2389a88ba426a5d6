"""Flows of diagonal weights in both parametrisations to log t = 1e6, with everything that App. A.2–A.5 speak of."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from jaxflow._core import RESULTS, SelectionStatus
from jaxflow.data import TokenData, equal_score_tokens, optimal_tokens, random_tokens
from jaxflow.limits import flow_certificate
from jaxflow.limits.rate import off_support
from jaxflow.losses import Exponential
from jaxflow.margin import ProgramResult, attention_svm, is_locally_optimal, solve
from jaxflow.models import DiagonalAttention, token_scores
from jaxflow.papers.registry import Data
from jaxflow.papers.sheen2024.blocks import in_blocks
from jaxflow.risk import EmpiricalRisk
from jaxflow.theory import (
    Accumulated,
    PlusMinusAttention,
    accumulate,
    assumption_2,
    assumption_3,
    averaged_residuals,
    constraint_rows,
    directions,
    integral_form,
    limiting_face,
    score_gap_needed,
    second_order_multipliers,
    unbalanced_start,
)
from jaxflow.theory.accumulated import RTOL

# log t at which everything is measured.
LOG_TIMES = np.concatenate([np.linspace(-4.0, 12.0, 9), np.geomspace(30.0, 1e6, 16)])
WIDTH = 8
# n, L, d of what is followed to full accuracy, and the margin of the diagonal planted there: every instance is
# separable by a diagonal W, by construction.
SHAPE = (3, 4, 4)
MARGIN = 0.1
# Attention on the optimal token at log t = 1e6: it is selected, or it is not, far from these on either side.
SELECTED, LEFT = 1.0 - 1e-6, 1e-6


class Cell(NamedTuple):
    r"""Instances of one kind: `multiple` of the gap that Assumption 3 needs, `spread` of the other scores (relaxed
    Assumption 2), $\omega_0$, common to all coordinates, and the `margin` of a planted diagonal
    (`equal_score_tokens`); or, with `random`, tokens and head uniform on the unit sphere (`random_tokens`), whose
    scores are all different and whose gaps are far below what Assumption 3 needs."""

    n: int
    T: int
    d: int
    multiple: Any
    omega: Any
    spread: Any = 0.0
    margin: Any = -np.inf
    random: Any = False


DYNAMIC = ("multiple", "omega", "spread", "margin", "random")


def follow_diagonal(cell: Cell, keys: Key[Array, " b"], *, both: bool = True, rtol: float = RTOL) -> Data:
    r"""For a batch of instances `(b, ...)`, at the times `LOG_TIMES` `(b, m)` where nothing else is said:

    - `diagonal`, `equal`, `small` `(b,)`: slacks of diagonal separability (which implies Assumption 1) and of
      Assumptions 2 and 3.
    - `ok` `(b,)`: whether the integrations reached their ends; `steps`.
    - `apart`: $\max_j|\beta_j-w_j|/\|\beta\|_\infty$ of the flows of $(\xi_k,\xi_q)$ and $(w_+,w_-)$ (NaN unless
      `both`).
    - `identity`: the same for β and $\omega_0^{\odot2}\sinh(B\phi)$, (19).
    - `conserved`: the largest change of $\xi_k^{\odot2}-\xi_q^{\odot2}$, over $\|\beta\|_\infty$ + ω₀².
    - `size`, `margin`: $\|\beta\|_2$ and μ.
    - `attention`: the least attention on an optimal token; `selects` `(b,)`: 1 if at the last time it is 1 to 1e-6,
      −1 if some optimal token has less than 1e-6 of it *and* the flow's own direction leaves it for good (see
      `abandoned`) or the tokens selected instead are locally optimal, else 0.
    - `gap`, `stationarity`, `slackness`, `predicted`: the instantaneous multipliers' duality gap, and the residuals
      of the averaged ones; `second_gap`: the duality gap of `second_order_multipliers`.
    - `cauchy`, `cauchy_norm`: Cauchy gaps of both directions.
    - `beta`, `coefficients`, `averaged`, `instantaneous` `(b, m, d)`: β, w (NaN unless `both`), and Bλ for the averaged
      multipliers (NaN while μ ≤ 1) and for the instantaneous ones, scaled to a largest entry of 1.
    - `result`, `program_gap`, `kappa` `(b,)`: the ℓ1-SVM of the optimal tokens, its certified gap, and κ;
      `weights_gap`: $\|\beta\|_1/(\mu\,\mathrm{opt})-1$.
    - `behind`, `least_multiplier` `(b,)`: how far the flow is from the face of its limit at the last
      time (`limiting_face`).
    """
    # As arrays these do not ask for another compilation.
    cell = cell._replace(**{name: jnp.asarray(getattr(cell, name)) for name in DYNAMIC})
    return in_blocks(partial(_block, cell, both, rtol), keys, WIDTH)


@eqx.filter_jit
def _block(cell: Cell, both: bool, rtol: float, keys: Array) -> dict[str, Array]:
    return jax.vmap(partial(_one, cell, both, rtol))(keys)


def draw(cell: Cell, key: Any) -> tuple[TokenData, Array, Array]:
    r"""Data, head, and $\omega_0$ `(d,)`."""
    gap = cell.multiple * score_gap_needed(cell.n, cell.T)
    kinds = (
        equal_score_tokens(key, cell.n, cell.T, cell.d, gap, cell.spread, cell.margin),
        random_tokens(key, cell.n, cell.T, cell.d),
    )
    data, head = jax.tree.map(lambda equal, drawn: jnp.where(cell.random, drawn, equal), *kinds)
    return data, head, jnp.full(cell.d, cell.omega)


def _one(cell: Cell, both: bool, rtol: float, key: Any) -> dict[str, Any]:
    data, head, omega = draw(cell, key)
    # Which of the two factors starts at zero is drawn too: it must not matter.
    in_key = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.5, (cell.d,))
    xi, w = unbalanced_start(omega, head, in_key)
    risk = EmpiricalRisk(data, Exponential())
    best = optimal_tokens(token_scores(data, xi.head), data.visible)
    times = jnp.asarray(LOG_TIMES)
    path = accumulate(risk, xi, times, rtol=rtol)
    beta = path.models.k * path.models.q
    size = jnp.max(jnp.abs(beta), axis=-1)
    found: dict[str, Any] = {
        "steps": path.steps,
        "ok": path.result == RESULTS.successful,
        "apart": jnp.full(times.shape, jnp.nan),
        "beta": beta,
        "coefficients": jnp.full(beta.shape, jnp.nan),
    }
    if both:
        other = accumulate(risk, w, times, rtol=rtol)
        coefficients = jax.vmap(PlusMinusAttention.coefficients)(other.models)
        found["coefficients"] = coefficients
        found["apart"] = jnp.max(jnp.abs(beta - coefficients), axis=-1) / size
        found["ok"] = found["ok"] & (other.result == RESULTS.successful)
    formed = jax.vmap(lambda pushes: integral_form(data, best, omega, pushes))(path.pushes)
    drift = jax.vmap(DiagonalAttention.conserved)(path.models) - xi.conserved()[None]
    found |= {
        "identity": jnp.max(jnp.abs(beta - formed), axis=-1) / size,
        "conserved": jnp.max(jnp.abs(drift), axis=-1) / (size + cell.omega**2),
        "size": jnp.linalg.norm(beta, axis=-1),
    }
    attention = jax.vmap(lambda model: jnp.min(jnp.where(best, model.attention(data), 1.0), axis=-1))(path.models)
    found["attention"] = jnp.min(attention, axis=-1)
    last = jax.tree.map(lambda x: x[-1], (path.models, path.gradients))
    left = abandoned(data, best, attention[-1] >= SELECTED, attention[-1] <= LEFT, *last)
    found |= _against_the_program(data, best, omega, beta, path)
    left = left | locally_optimal(data, xi.head, best, last[0].attention(data) >= SELECTED)
    found["selects"] = jnp.where(jnp.all(attention[-1] >= SELECTED), 1, jnp.where(left, -1, 0))
    found["equal"] = assumption_2(data, head).slack
    found["small"] = assumption_3(risk, xi).slack
    return found


def _against_the_program(data: TokenData, best: Array, omega: Array, beta: Array, path: Accumulated) -> dict[str, Any]:
    program = attention_svm(data, best, "l1")
    solution = solve(program)

    def certified(model: Any, gradient: Any, multipliers: Array) -> Array:
        velocity = jax.tree.map(lambda g: -g, gradient.gradient)
        return flow_certificate(program, model, velocity, multipliers)[0].duality_gap

    residuals = jax.vmap(lambda beta, pushes: averaged_residuals(data, best, omega, beta, pushes, solution.primal))(
        beta, path.pushes
    )
    both = directions(data, best, jax.vmap(jnp.diag)(beta))
    mu = both.margin
    rows = constraint_rows(data, best)
    combined = jnp.einsum("ntd,mnt->md", rows, path.pushes)
    multipliers: Any = path.gradients.multipliers
    now = jnp.einsum("ntd,mnt->md", rows, multipliers)
    pair = jnp.stack([multipliers, second_order_multipliers(path.log_times, multipliers)], axis=1)
    gaps = jax.vmap(jax.vmap(certified, in_axes=(None, None, 0)))(path.models, path.gradients, pair)
    face = limiting_face(rows, solution.dual, beta[-1])
    optimum = solution.certificate.primal_value
    solved, infeasible = solution.result == ProgramResult.optimal, solution.result == ProgramResult.infeasible
    value = jnp.sum(jnp.abs(beta), axis=-1) / jnp.where(mu > 0, mu, 1.0)
    return {
        "margin": mu,
        "gap": gaps[:, 0],
        "second_gap": gaps[:, 1],
        "averaged": 2.0 * combined / residuals.log_margin[:, None],
        "instantaneous": now / jnp.max(jnp.abs(now), axis=-1, keepdims=True),
        "stationarity": residuals.stationarity,
        "slackness": residuals.slackness,
        "predicted": residuals.predicted,
        "cauchy": both.gap_by_margin,
        "cauchy_norm": both.gap_by_norm,
        "result": solution.result.value,
        # As `jaxflow.theory.diagonal_separability`, from the program that is solved here anyway.
        "diagonal": jnp.where(solved, 1.0 / optimum, jnp.where(infeasible, 0.0, jnp.nan)),
        "program_gap": solution.certificate.duality_gap,
        "behind": face.behind,
        "least_multiplier": face.least_multiplier,
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
    gains = jnp.einsum("ntd,d->nt", constraint_rows(data, best), speed)
    slowest = jnp.min(jnp.where(selected[:, None] & ~best, gains, jnp.inf))
    losses = jnp.max(jnp.where(best, -jnp.inf, -gains), axis=-1)
    outruns = jnp.all(~left | (losses >= 1.1 * slowest))
    decided = jnp.all(selected | left) & jnp.any(left) & jnp.any(selected)
    return decided & outruns & (slowest > 0) & (certificate.duality_gap <= 0.05)
