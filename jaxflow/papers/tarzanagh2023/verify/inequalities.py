"""Lemmas 2, 6, 7, 9 and 10, and with Lemma 9 the first part of Theorem 3: inequalities at random points."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import approx_fprime

from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, FactoredAttention, token_scores
from jaxflow.papers.experiment import BELOW_ZERO, Again, Draw, Statement, Table, keys_of, mapped, register, swept
from jaxflow.papers.independent import Tokens, attention, best_rows, descent_direction, least_norm, tokens_of
from jaxflow.papers.tarzanagh2023.concave import target
from jaxflow.papers.tarzanagh2023.programs import cosine, feasible, optimal_program, solved
from jaxflow.papers.tarzanagh2023.verify.instances import equal_scores, explicit_case, scaled_gradient_of
from jaxflow.risk import EmpiricalRisk

TRIALS = {"quick": 500, "paper": 20_000, "large": 200_000}
N, T, D = 4, 4, 4
# Sizes of random weights: from attention that is nearly even to attention that is nearly one-hot.
SPREADS = (0.1, 1.0, 5.0)
# At margins of this much every masked token has attention below 1e-21.
FAR = 50.0
# Norms of W at which Lemma 10 is tried on the explicit case.
RADII = (5.0, 10.0, 20.0, 40.0)
# The direction that descent takes there.
WRONG = np.array([[1.0, 0.0], [0.0, 0.0]])
# Sums of a few numbers of order one.
ROUNDING = 1e-12
# A π that is asked for at ‖W‖ = 40, where constants over ‖W‖ are well below it on n = 1.
SMALL_PI = 1e-3


def _points(number: int, one: Callable[[Array], Any], scale: str, key: Any) -> Any:
    """`one` at random points."""
    return mapped()(one)(keys_of(key, number, TRIALS[scale]))


def _gradients(key: Array) -> Table:
    """Random W on data of Assumption B.2: `result` of (Att-SVM) (`ProgramResult`); `excess` L(W) − L_*; `limit`
    |L(R W^mm) − L_*| at R = `FAR`; `push`, the cosine of ∇L(W) and W^mm; `far_push` ⟨∇L(R W^mm), W^mm⟩; `origin`, the
    norm of ∇L(K, Q) at K = Q = 0."""
    key_data, key_spread, key_W = jax.random.split(key, 3)
    data, head = equal_scores(key_data, N, T, D)
    _, solution = optimal_program(data, head)
    risk = EmpiricalRisk(data, Logistic())
    infimum = jnp.mean(jax.nn.softplus(-jnp.max(token_scores(data, head), axis=-1)))
    spread = jnp.asarray(SPREADS)[jax.random.randint(key_spread, (), 0, len(SPREADS))]
    W = spread * jax.random.normal(key_W, (D, D))
    scaled: Any = risk.scaled_gradient(CombinedAttention(W, head))
    far = CombinedAttention(FAR * solution.primal, head)
    ahead: Any = risk.scaled_gradient(far)
    zero: Any = risk.scaled_gradient(FactoredAttention(jnp.zeros((D, D)), jnp.zeros((D, D)), head))
    return Table(
        result=solution.result.value,
        excess=risk(CombinedAttention(W, head)) - infimum,
        limit=jnp.abs(risk(far) - infimum),
        # Its sign, with the scale taken out of the gradient.
        push=cosine(scaled.gradient.W, solution.primal),
        far_push=jnp.exp(ahead.log_scale) * jnp.sum(ahead.gradient.W * solution.primal),
        origin=jnp.exp(zero.log_scale) * jnp.hypot(*map(jnp.linalg.norm, (zero.gradient.K, zero.gradient.Q))),
    )


def _concave(key: Array) -> Table:
    r"""A random case of (8): how many entries of $s^\star=\mathrm{Proj}_\Delta(\gamma/2\lambda)$ are `nonzero`, and
    `tau`."""
    length = 10
    key_gaps, key_tau, key_share, key_lambda = jax.random.split(key, 4)
    tau = jax.random.randint(key_tau, (), 2, length)
    gaps = jax.random.exponential(key_gaps, (length - 1,))
    # The first gap is made small enough for (8): a share of τ γ_τ^gap / 2.
    limit = 0.5 * tau * gaps[tau - 1]
    gaps = gaps.at[0].set(limit * jax.random.uniform(key_share))
    penalty = gaps[0] + (limit - gaps[0]) * jax.random.uniform(key_lambda, minval=1e-3, maxval=1.0 - 1e-3)
    scores = -jnp.concatenate([jnp.zeros(1), jnp.cumsum(gaps)])
    return Table(nonzero=jnp.sum(target(scores, penalty) > 0), tau=tau)


def _centred(key: Array) -> Table:
    """Of random vectors, by how much the difference of Lemma 7 is `over` its bound."""
    key_a, key_gamma, key_logits = jax.random.split(key, 3)
    a, gamma = jax.random.normal(key_a, (T,)), jax.random.normal(key_gamma, (T,))
    s = jax.nn.softmax(5.0 * jax.random.normal(key_logits, (T,)))
    left = jnp.sum(a * s * gamma) - jnp.sum(a * s) * jnp.sum(s * gamma)
    right = jnp.sum(((a[0] - a) * s * (gamma[0] - gamma))[1:])
    bound = 2.0 * (jnp.max(gamma) - jnp.min(gamma)) * jnp.max(jnp.abs(a)) * jnp.sum(s[1:]) ** 2
    return Table(over=jnp.abs(left - right) - bound)


@jax.jit
def _lemma10() -> Float[Array, " radii"]:
    r"""$\langle\nabla L,W/\|W\|\rangle/\langle\nabla L,W^{mm}/\|W^{mm}\|\rangle$ towards the wrong limit."""
    data, head = explicit_case()
    aim, wrong = optimal_program(data, head)[1].primal, jnp.asarray(WRONG)

    def ratio(radius: Array) -> Array:
        slope = scaled_gradient_of(data, head, radius * wrong).gradient.W
        return cosine(slope, wrong) / cosine(slope, aim)

    return jax.vmap(ratio)(jnp.asarray(RADII))


def _ratio_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    given = tokens_of(*explicit_case())
    aim = least_norm(best_rows(given))
    assert aim is not None
    pull = descent_direction(given, RADII[-1] * WRONG)
    return float(np.sum(pull * WRONG) / np.sum(pull * aim) * np.linalg.norm(aim)) - 1.0


def _drawn_again(draw: Draw, at: tuple[int, ...]) -> Tokens:
    key = keys_of(draw.key("gradients"), 0, TRIALS[draw.scale])[at[0]]
    return tokens_of(*equal_scores(jax.random.split(key, 3)[0], N, T, D))


def _push_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    given = _drawn_again(draw, at)
    aim = least_norm(best_rows(given))
    return np.nan if aim is None else ROUNDING - abs(float(np.sum(descent_direction(given, FAR * aim) * aim)))


def _origin_again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
    given = _drawn_again(draw, at)

    def loss(factors: np.ndarray) -> float:
        K, Q = factors.reshape(2, D, D)
        return float(np.mean(np.log1p(np.exp(-np.sum(attention(given, K @ Q.T) * given.scores, axis=1)))))

    slope: Any = approx_fprime(np.zeros(2 * D * D), loss)
    return -float(np.linalg.norm(slope))


# Random data of Assumption B.2 (Lemmas 2, 9), random vectors (6, 7), the explicit case (10): `ratio` `(radii,)` of the
# two products, at `RADII`.
INEQUALITIES = swept(
    "tarzanagh2023",
    "inequalities",
    gradients=partial(_points, 0, _gradients),
    concave=partial(_points, 1, _concave),
    centred=partial(_points, 2, _centred),
    explicit=lambda scale, key: Table(ratio=_lemma10()),
)
KIND = f"random W on data of Assumption B.2, n = T = d = {N}"


def _at_points(
    source: str,
    says: str,
    of: Callable[[Table], np.ndarray],
    unit: str,
    bound: float,
    again: Again[Table] | None = None,
) -> Statement[Table]:
    """Of gradients, where the program has a solution."""
    return Statement(
        source=source,
        says=says,
        inside=lambda n: feasible(n.gradients.result),
        residual=lambda n: np.where(solved(n.gradients.result), of(n.gradients), np.nan),
        bound=(bound, unit),
        again=again,
    )


def _pushes(source: str, says: str) -> Statement[Table]:
    return _at_points(source, f"{says}; {KIND}", lambda g: g.push, "cosine of ∇L and W^mm; below 0", BELOW_ZERO)


ONE_CONSTANT = _at_points(
    "Lemma 9",
    "one c > 0 with ⟨∇L(W), W^mm⟩ ≤ −c for all W",
    # One c for all points: the smallest value refutes it, where the loss is at its infimum to rounding.
    lambda g: ROUNDING - np.abs(g.far_push),
    f"{ROUNDING:g} − |⟨∇L, W^mm⟩|; at most 0",
    0.0,
    Again("NNLS of SciPy and a gradient in NumPy", _push_again, ROUNDING),
)

register(
    INEQUALITIES,
    title="Theorem 3 and Lemmas 2, 6, 7, 9, 10",
    statements=[
        _pushes("Theorem 3", "∇L(W) ≠ 0, by ⟨∇L(W), W^mm⟩ < 0"),
        # Saturated attention leaves less than rounding: equality to it is no contradiction.
        _at_points("Lemma 2", f"L(W) > L_*; {KIND}", lambda g: -g.excess, "L_* − L(W)", ROUNDING),
        _at_points(
            "Lemma 2",
            f"L(R W^mm) → L_*: the difference at R = {FAR:g}",
            lambda g: g.limit,
            "|L(R W^mm) − L_*|",
            ROUNDING,
        ),
        _pushes("Lemma 9", "⟨∇L(W), W^mm⟩ < 0"),
        ONE_CONSTANT,
        Statement(
            source="Lemma 6",
            says="between 2 and τ entries of s* are nonzero for random scores and λ that satisfy (8), T = 10",
            residual=lambda n: (n.concave.nonzero < 2) | (n.concave.nonzero > n.concave.tau),
        ),
        Statement(
            source="Lemma 7",
            says="the difference is at most 2ΓA(1 − s₁)², random vectors",
            residual=lambda n: n.centred.over,
            bound=(ROUNDING, "left − right; at most 0"),
        ),
        Statement(
            source="Lemma 10",
            says="⟨∇L, W/‖W‖⟩ ≥ (1 + π)⟨∇L, W^mm/‖W^mm‖⟩ for ‖W‖ ≥ R_π, on Theorem 4's explicit case along "
            "W = ‖W‖ e₁e₁ᵀ",
            # The statement requires it to be below any π from some R on: judged at the largest.
            residual=lambda n: n.explicit.ratio[-1:] - 1.0,
            bound=(SMALL_PI, "π that would be needed"),
            again=Again("NNLS of SciPy and a gradient in NumPy", _ratio_again, SMALL_PI),
        ),
        Statement(
            source="§4.1",
            says="(KQ-ERM) lacks stationary points under Assumption B; tried at K = Q = 0, on the data of Lemma 9",
            inside=lambda n: feasible(n.gradients.result),
            residual=lambda n: -n.gradients.origin,
            bound=(BELOW_ZERO, "−‖∇L(K, Q)‖; below 0"),
            again=Again("differences of SciPy", _origin_again, ROUNDING),
        ),
    ],
)
