r"""Lemmas 11 to 14: gradients within $\bar{\mathcal C}_{\mu,R}$ of (48) and $\mathcal C_{\mu,R}(W^{mm}_\alpha)$ of (4);
Lemma 17."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import SelectionStatus, positive_or_one
from jaxflow.data import TokenData, random_tokens
from jaxflow.models import CombinedAttention, log_attention, token_scores
from jaxflow.papers.experiment import Rate, Table, fit, mapped, numpy_generator, register, swept
from jaxflow.papers.statement import BELOW_ZERO, Mask, Statement
from jaxflow.papers.tarzanagh2023.programs import optimal_program, solved
from jaxflow.papers.tarzanagh2023.verify import instances as draws
from jaxflow.papers.tarzanagh2023.verify.instances import choices_of_tokens, margins_of, masks, scaled_gradient_of

TRIALS = {"quick": 64, "paper": 1024, "large": 16384}
# d at the bound of Theorem 1; small enough for locally-optimal choices beside the optimal one.
N, T, D = 3, 4, 3
# Norms in units of the R of a lemma.
FACTORS = (1.0, 4.0, 16.0, 64.0)
# Sums of a few numbers, relative to their size.
ROUNDING = 1e-9
# ‖∇L‖/Σ|∂L/∂a| of a point at rest is less: as for stationary points of the flow.
MOVING = 1e-6
# Least singular values of small matrices: above the first none of a projection is zero but for rounding, and at most
# the second is.
FULL_RANK, RANK_LOST = 1e-9, 1e-12


def _cone(inside: Any, empty: Any, at: tuple[Array, ...], lower: Array, upper: Array, bound: Array) -> Table:
    r"""One random V, and W at the r norms `FACTORS` times R, in the cone of each instance; R is the proof's own.

    - `inside`: there is a W^mm to make a cone of; `empty`: some $T_i$ of its choice is; `bound` R.
    - `push` `(r,)`: $-\langle\nabla L(W),V\rangle$ on the gradient's scale; the proof's `lower` and `upper` bounds of
      it.
    - `ratio` `(r,)`: π of Lemmas 11 and 14 is this less 1; `slope` `(r,)`: ‖∇L(W)‖ over the sum of all |∂L/∂a|.
    """
    push, ratio, slope = at
    more = {"lower": lower, "upper": upper, "bound": bound, "slope": slope}
    return Table(inside=jnp.asarray(inside), empty=jnp.asarray(empty), push=push, ratio=ratio, **more)


def _pushed(data: TokenData, head: Any, selection: Array, aim: Array, W: Array, V: Array) -> tuple[Array, ...]:
    """`push`, `ratio` and `slope` of `_cone` at one W; of each sequence |ℓ'|(1 − s_α) over n and the gradient's
    scale."""
    model, scaled = CombinedAttention(W, head), scaled_gradient_of(data, head, W)
    down, slopes = -scaled.gradient.W, jax.nn.sigmoid(-data.labels * model.outputs(data))
    log_s = log_attention(model.logits(data), data.visible)
    rest = jax.nn.logsumexp(jnp.where(selection, -jnp.inf, log_s), axis=-1)
    ratio = jnp.sum(down * W) * jnp.linalg.norm(aim) / (jnp.linalg.norm(W) * jnp.sum(down * aim))
    slope = jnp.linalg.norm(down) / jnp.sum(jnp.abs(scaled.multipliers))
    return jnp.sum(down * V), ratio, slope, slopes * jnp.exp(rest - scaled.log_scale) / slopes.size


@mapped()
def _global(key: Array) -> Table:
    key_data, key_W, key_share, key_V = jax.random.split(key, 4)
    data, head = random_tokens(key_data, N, T, D)
    best, solution = optimal_program(data, head)
    size = jnp.linalg.norm(solution.primal)
    theta = 1.0 / positive_or_one(size)
    aim = solution.primal * theta
    # From W^mm towards a random direction, by a random share of the way out of the separating set.
    line, least, out = draws.way_out(data, best, aim, jax.random.normal(key_W, (D, D)), 64)
    index = jnp.minimum((jax.random.uniform(key_share) * out).astype(int), jnp.maximum(out - 1, 0))
    U, mu = line[index], least[index] / theta
    gaps = draws.gaps_of(data, head, best, theta)
    usable = solved(solution.result.value) & (size > 0) & (mu > 0)
    mu = jnp.where(usable, mu, 1.0)
    bound = draws.radius(gaps, mu, theta, T)
    # Between two members of S_μ, so that it is one; of norm ‖W^mm‖.
    V = aim + jax.random.uniform(key_V) * (U - aim)
    V = V / (theta * jnp.linalg.norm(V))
    at = jax.vmap(lambda factor: _pushed(data, head, best, solution.primal, factor * bound * U, V))
    *pushes, weights = at(jnp.asarray(FACTORS))
    lower = 0.5 * mu * jnp.sum(weights * gaps.least, axis=-1)
    upper = 2.0 * gaps.A * jnp.sum(weights * gaps.most, axis=-1)
    return _cone(usable, False, tuple(pushes), lower, upper, bound)


@mapped()
def _programs(key: Array) -> Any:
    data, head = random_tokens(jax.random.fold_in(key, 7), N, T, D)
    return data, head, draws.programs_of(data, head, jnp.asarray(choices_of_tokens(N, T)))


def _locals(scale: str, key: Any) -> Table:
    trials = TRIALS[scale]
    data, head, programs = _programs(jax.random.split(key, trials))
    local = np.asarray(programs.status) == SelectionStatus.local.value
    # The first in a random order; an instance without one is outside.
    order = np.asarray(jax.random.uniform(jax.random.fold_in(key, 1), local.shape))
    pick, rows = np.where(local, order, -1.0).argmax(axis=1), np.arange(trials)
    chosen = jnp.asarray(choices_of_tokens(N, T)[pick])
    W, support = programs.weights[rows, pick], programs.support[rows, pick]
    found = _local(jax.random.split(jax.random.fold_in(key, 2), trials), data, head, chosen, W, support)
    # Both R are finite, or neither is asked.
    inside = local.any(axis=1) & np.isfinite(found.bound).all(axis=0)
    return jax.tree.map(np.asarray, found.replace(inside=np.broadcast_to(inside, found.bound.shape)))


@mapped(out_axes=1)
def _local(key: Array, a: TokenData, v: Any, choice: Array, aim: Array, support: Array) -> Table:
    selection = masks(choice[None], a)[0]
    margins = margins_of(a, selection, aim)
    # (67): half the distance between support tokens and others of the same sequence, where it has some.
    others = jnp.where(support | selection, jnp.inf, margins - 1.0)
    printed = 0.5 * jnp.min(jnp.where(jnp.any(support, axis=1, keepdims=True), others, jnp.inf))

    def bounds(delta: Array) -> Table:
        scores = token_scores(a, v)
        size = jnp.linalg.norm(aim)
        theta = 1.0 / positive_or_one(size)
        A = jnp.max(jnp.linalg.norm(a.tokens, axis=2) * jnp.linalg.norm(a.queries, axis=1)[:, None]) / theta
        mu = (jnp.minimum(0.5, delta) / A) ** 2 / 8.0
        own = jnp.sum(jnp.where(selection, scores, 0.0), axis=-1)
        low = own - jnp.max(jnp.where(support, scores, -jnp.inf), axis=-1)
        high = own - jnp.min(jnp.where(support, scores, jnp.inf), axis=-1)
        # A sequence without support tokens has no gaps.
        low, high = (jnp.where(jnp.any(support, axis=1), x, 0.0) for x in (low, high))
        gamma = jnp.min(jnp.where(jnp.any(support, axis=1), low, jnp.inf))
        spread = jnp.max(scores) - jnp.min(scores)
        bound = jnp.maximum(2.0, 1.0 / delta) / theta * jnp.log(64.0 * T * spread * A / gamma)

        def near(key: Array) -> Array:
            key_noise, key_share = jax.random.split(key)
            noise = jax.random.normal(key_noise, aim.shape)
            across = noise - jnp.sum(noise * aim) * theta**2 * aim
            across = across / jnp.linalg.norm(across)
            corr = 1.0 - mu * jax.random.uniform(key_share)
            return corr * aim * theta + jnp.sqrt(1.0 - corr**2) * across

        U, V = (near(k) for k in jax.random.split(key))
        at = jax.vmap(lambda factor: _pushed(a, v, selection, aim, factor * bound * U, V / theta))
        *pushes, weights = at(jnp.asarray(FACTORS))
        lower = 0.125 * jnp.sum(weights * low, axis=-1)
        upper = 2.0 * jnp.sum(weights * high, axis=-1)
        empty = jnp.any(~jnp.any(support, axis=1))
        return _cone(True, empty, tuple(pushes), lower, upper, bound)

    # As printed, and over the margins of all sequences.
    return jax.vmap(bounds)(jnp.stack([printed, 0.5 * jnp.min(others)]))


def matrices(random: np.random.Generator, trials: int) -> Table:
    """Lemma 17 on random matrices: `least` singular values of [A; B], and of B `projected` on P, `(b,)`."""
    least, projected = [], []
    for _ in range(trials):
        n, m = random.integers(1, 5, size=2)
        p = int(n + m + random.integers(0, 4))
        A = random.normal(size=(n, p))
        null = np.linalg.svd(A)[2][n:]
        size = int(random.integers(m, p - n + 1))
        P = np.linalg.qr(null.T @ random.normal(size=(p - n, size)))[0]
        # Mostly in the row space of A: all that tells the rows apart lies in P.
        B = 1e-3 * random.normal(size=(m, size)) @ P.T + random.normal(size=(m, n)) @ A
        projected.append(np.linalg.svd(B @ P, compute_uv=False)[-1])
        least.append(np.linalg.svd(np.concatenate([A, B]), compute_uv=False)[-1])
    return Table(least=np.asarray(least), projected=np.asarray(projected))


# `optimal` `(b,)`: the cone of the optimal tokens; `local` `(2, b)`: that of a locally-optimal choice, with the δ of
# (67) as printed, and over the tokens of all sequences, those without support tokens too.
CONE_LEMMAS = swept(
    "tarzanagh2023",
    "cone-lemmas",
    optimal=lambda scale, key: _global(jax.random.split(key, TRIALS[scale])),
    local=_locals,
    ranks=lambda scale, key: matrices(numpy_generator(key), TRIALS[scale]),
)

Of = Callable[[Table], Table]
SIZES = f"n = {N}, T = {T}, d = {D}"


def ratio(source: str, where: str, of: Of, inside: Callable[[Table], Mask]) -> Statement[Table]:
    """⟨∇L, W/‖W‖⟩ against ⟨∇L, W^mm/‖W^mm‖⟩."""

    def pi(cone: Table) -> np.ndarray:
        """Of each instance at each norm."""
        return np.maximum(cone.ratio - 1.0, 0.0)

    def needed(cone: Table) -> np.ndarray:
        """The largest π at each norm."""
        return pi(cone)[inside(cone)].max(axis=0, initial=0.0)

    def rate(cone: Table, known: Mask) -> Rate | None:
        largest_pi = needed(cone)
        seen = largest_pi > ROUNDING
        if seen.sum() < 3:
            return None
        slope, half = fit(np.log(np.asarray(FACTORS)[seen]), np.log(largest_pi[seen]))
        return Rate(-slope, half, None, law="the largest π needed against R")

    return Statement(
        source=source,
        says=f"⟨∇L, W/‖W‖⟩ ≥ (1 + π)⟨∇L, W^mm/‖W^mm‖⟩ for every π > 0 from some R on, {where}, {SIZES}",
        of=of,
        inside=inside,
        # The statement wants any π > 0 from some R on: what is needed must fall, at the end at least like 1/R.
        residual=lambda cone: pi(cone)[:, -1] / (2.0 * needed(cone)[-2] * FACTORS[-2] / FACTORS[-1] + ROUNDING),
        bound=(1.0, f"π needed at {FACTORS[-1]:g} R_μ over twice what 1/R leaves of the largest before"),
        # It may fall like 1/R further out, unless it is above the largest before.
        late=0.5 * FACTORS[-1] / FACTORS[-2],
        rate=rate,
    )


def bounds(source: str, where: str, of: Of, inside: Callable[[Table], Mask]) -> Statement[Table]:
    """−⟨∇L(W), V⟩ against the bounds of a proof."""

    def residual(cone: Table) -> np.ndarray:
        """The shares of the lower bound in it, and of it in the upper; +inf where it is not positive."""
        not_positive = cone.push <= 0
        push = np.where(not_positive, 1.0, cone.push)
        return np.where(not_positive, np.inf, np.maximum(cone.lower / push, push / cone.upper)).max(axis=-1)

    return Statement(
        source=source,
        says=f"−⟨∇L(W), V⟩ lies between the bounds of the proof, so that there is no stationary point, {where}, "
        f"{SIZES}",
        of=of,
        inside=inside,
        residual=residual,
        bound=(1.0 + ROUNDING, "lower bound / −⟨∇L, V⟩ / upper bound, each at most 1"),
    )


POSITIVE = Statement[Table](
    source="Lemma 13",
    says=f"−⟨∇L(W), V⟩ > 0 within cone_μ(W^mm_α) where some T_i is empty, μ of (67), {SIZES}",
    inside=lambda n: n.local.inside[0] & n.local.empty[0],
    residual=lambda n: -n.local.push[0, :, -1],
    bound=(BELOW_ZERO, "⟨∇L, V⟩ on its own scale; below 0"),
)

MOVES = Statement[Table](
    source="Theorem 7, T1",
    says="there are μ and R such that C_{μ,R}(W^mm_α) has no stationary point: one random W at each norm from R of "
    f"(74) on, μ of (67), whether some T_i is empty or not, {SIZES}",
    inside=lambda n: n.local.inside[0],
    residual=lambda n: -n.local.slope[0].min(axis=-1),
    bound=(-MOVING, "−‖∇L‖/Σ|∂L/∂a|; below 0"),
    # Where gradients are roundings of what they are made of, the point is stationary.
    late=-ROUNDING,
)

FULL = Statement[Table](
    source="Lemma 17",
    says="[A; B] has full row rank if A has and B projected on a subspace of the null space of A has; B nearly in the "
    "row space of A",
    inside=lambda n: n.ranks.projected > FULL_RANK,
    residual=lambda n: -n.ranks.least,
    bound=(-np.nextafter(RANK_LOST, 1.0), "−(least singular value); below 0"),
)

PRINTED: tuple[Of, Any] = lambda n: n.local.at(0), lambda cone: cone.inside & ~cone.empty
OPTIMAL: tuple[Of, Any] = lambda n: n.optimal, lambda cone: cone.inside

STATEMENTS = [
    ratio("Lemma 11", "W in C̄_{μ,R} of (48)", *OPTIMAL),
    bounds("Lemma 12", "V in S_μ, W in C̄_{μ,R}, R = R_μ of (59): (60)", *OPTIMAL),
    bounds("Lemma 13", "V, W in cone_μ(W^mm_α), R of (74), no T_i empty: (75)", *PRINTED),
    POSITIVE,
    MOVES,
    ratio("Lemma 14", "W in C_{μ,R}(W^mm_α), no T_i empty", *PRINTED),
    FULL,
]
register(CONE_LEMMAS, title="Lemmas 11, 12, 13, 14, 17", statements=STATEMENTS)
