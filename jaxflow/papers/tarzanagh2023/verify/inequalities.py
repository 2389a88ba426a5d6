"""Lemmas 2, 6, 7, 9 and 10, and with Lemma 9 the first part of Theorem 3: inequalities at random points."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxflow.data import optimal_tokens
from jaxflow.losses import Logistic
from jaxflow.margin import ProgramResult, attention_svm, solve
from jaxflow.models import CombinedAttention, token_scores
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.instances import equal_scores, explicit_case
from jaxflow.report import Evidence
from jaxflow.risk import EmpiricalRisk

TRIALS = {"quick": 500, "paper": 20_000, "large": 200_000}
N, T, D = 4, 4, 4
# Sizes of random weights: from attention that is nearly even to attention that is nearly one-hot.
SPREADS = (0.1, 1.0, 5.0)
# At margins of this much every masked token has attention below 1e-21.
FAR = 50.0
# Norms of W at which Lemma 10 is tried on the explicit case.
RADII = (5.0, 10.0, 20.0, 40.0)
# Sums of a few numbers of order one.
ROUNDING = 1e-12
# Of central differences, whose own error is its square.
STEP = 1e-4


@register_check("tarzanagh2023", "inequalities", statements="Theorem 3 and Lemmas 2, 6, 7, 9, 10")
class Inequalities(AbstractCheck):
    """Random data of Assumption B.2 (Lemmas 2, 9), random vectors (6, 7), the explicit case (10)."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        say(f"Lemmas 2, 6, 7, 9, 10: {TRIALS[scale]} random points")
        found: Data = {}
        for number, function in enumerate((_gradients, _concave, _centred)):
            keys = jax.random.split(jax.random.fold_in(key, number), TRIALS[scale])
            found |= {name: np.asarray(value) for name, value in jax.jit(jax.vmap(function))(keys).items()}
        return found | {"lemma10": np.asarray(_lemma10())}

    def rows(self, data: Data) -> list[Row]:
        return [*_rows_of_gradients(data), _row6(data), _row7(data), _row10(data)]


def _gradients(key: Array) -> dict[str, Array]:
    key_data, key_spread, key_W = jax.random.split(key, 3)
    data, head = equal_scores(key_data, N, T, D)
    scores = token_scores(data, head)
    best = optimal_tokens(scores, data.visible)
    solution = solve(attention_svm(data, best, "frobenius"))
    risk = EmpiricalRisk(data, Logistic())
    least = jnp.mean(jax.nn.softplus(-jnp.max(scores, axis=-1)))
    spread = jnp.asarray(SPREADS)[jax.random.randint(key_spread, (), 0, len(SPREADS))]
    W = spread * jax.random.normal(key_W, (D, D))
    scaled = risk.scaled_gradient(CombinedAttention(W, head))
    far = CombinedAttention(FAR * solution.primal, head)
    ahead = risk.scaled_gradient(far)
    return {
        "result": solution.result.value,
        "excess": risk(CombinedAttention(W, head)) - least,
        "limit": jnp.abs(risk(far) - least),
        # Its sign, with the scale taken out of the gradient.
        "push": _along(scaled.gradient, solution.primal),
        "far_push": jnp.exp(ahead.log_scale) * jnp.sum(ahead.gradient.W * solution.primal),
    }


def _along(gradient: Any, W: Float[Array, "d d"]) -> Float[Array, ""]:
    """The cosine of the gradient and W."""
    sizes = jnp.linalg.norm(gradient.W) * jnp.linalg.norm(W)
    return jnp.sum(gradient.W * W) / jnp.where(sizes > 0, sizes, 1.0)


def _concave(key: Array) -> dict[str, Array]:
    r"""A random case of (8), and the number of nonzero entries of $s^\star=\mathrm{Proj}_\Delta(\gamma/2\lambda)$."""
    length = 10
    key_gaps, key_tau, key_share, key_lambda = jax.random.split(key, 4)
    tau = jax.random.randint(key_tau, (), 2, length)
    gaps = jax.random.exponential(key_gaps, (length - 1,))
    # The first gap is made small enough for (8): a share of τ γ_τ^gap / 2.
    limit = 0.5 * tau * gaps[tau - 1]
    gaps = gaps.at[0].set(limit * jax.random.uniform(key_share))
    penalty = gaps[0] + (limit - gaps[0]) * jax.random.uniform(key_lambda, minval=1e-3, maxval=1.0 - 1e-3)
    scores = -jnp.concatenate([jnp.zeros(1), jnp.cumsum(gaps)])
    # Projection onto the simplex: scores are in decreasing order already.
    x = scores / (2.0 * penalty)
    counts = jnp.arange(1, length + 1)
    thresholds = (jnp.cumsum(x) - 1.0) / counts
    support = jnp.sum(x > thresholds)
    s = jnp.maximum(x - thresholds[support - 1], 0.0)
    # The optimality condition 2λ s − γ = const on the support, at least that off it.
    slope = 2.0 * penalty * s - scores
    return {"nonzero": jnp.sum(s > 0), "tau": tau, "kkt": (slope[0] - jnp.min(slope)) / penalty}


def _centred(key: Array) -> dict[str, Array]:
    key_a, key_gamma, key_logits = jax.random.split(key, 3)
    a, gamma = jax.random.normal(key_a, (T,)), jax.random.normal(key_gamma, (T,))
    s = jax.nn.softmax(5.0 * jax.random.normal(key_logits, (T,)))
    left = jnp.sum(a * s * gamma) - jnp.sum(a * s) * jnp.sum(s * gamma)
    right = jnp.sum(((a[0] - a) * s * (gamma[0] - gamma))[1:])
    bound = 2.0 * (jnp.max(gamma) - jnp.min(gamma)) * jnp.max(jnp.abs(a)) * jnp.sum(s[1:]) ** 2
    return {"lemma7": jnp.abs(left - right) - bound}


@jax.jit
def _lemma10() -> Float[Array, " radii"]:
    r"""$\langle\nabla L,W/\|W\|\rangle/\langle\nabla L,W^{mm}/\|W^{mm}\|\rangle$ towards the wrong limit."""
    data, head = explicit_case()
    best = optimal_tokens(token_scores(data, head), data.visible)
    aim = solve(attention_svm(data, best, "frobenius")).primal
    wrong = jnp.array([[1.0, 0.0], [0.0, 0.0]])

    def ratio(radius: Array) -> Array:
        scaled: Any = EmpiricalRisk(data, Logistic()).scaled_gradient(CombinedAttention(radius * wrong, head))
        return _along(scaled.gradient, wrong) / _along(scaled.gradient, aim)

    return jax.vmap(ratio)(jnp.asarray(RADII))


def _again(ratios: np.ndarray) -> str:
    """The ratio at the smallest radius once more, by differences of a loss written in NumPy."""
    data, head = explicit_case()
    tokens, queries, labels, v = (np.asarray(x) for x in (data.tokens, data.queries, data.labels, head))
    best = np.asarray(optimal_tokens(token_scores(data, head), data.visible))
    aim = np.asarray(solve(attention_svm(data, jnp.asarray(best), "frobenius")).primal)
    wrong = np.array([[1.0, 0.0], [0.0, 0.0]])

    def loss(W: np.ndarray) -> float:
        logits = np.einsum("ntd,de,ne->nt", tokens, W, queries)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        attention = weights / weights.sum(axis=1, keepdims=True)
        return float(np.mean(np.log1p(np.exp(-labels * np.einsum("nt,ntd,d->n", attention, tokens, v)))))

    def slope(direction: np.ndarray) -> float:
        unit = direction / np.linalg.norm(direction)
        return (loss(RADII[0] * wrong + STEP * unit) - loss(RADII[0] * wrong - STEP * unit)) / (2.0 * STEP)

    again = slope(wrong) / slope(aim)
    # The slopes at ‖W‖ = 5 are of order 1e-3, differences of losses are known to 1e-16/1e-4.
    same = abs(again / float(ratios[0]) - 1.0) <= 1e-4
    return f"differences of a loss in NumPy, {again:.4f} at ‖W‖ = {RADII[0]:g}" if same else ""


def _row(source: str, checked: str, bad: np.ndarray, worst: float, residual: str, **more: Any) -> Row:
    """`bad` of the points that are decided; `undecided` others are inside too."""
    count, undecided, outside = int(bad.sum()), int(more.pop("undecided", 0)), int(more.pop("outside", 0))
    total = bad.size + undecided
    text = f"{count} of {total} fail" + more.pop("text", "")
    evidence = Evidence(total, count, undecided)
    return Row(source, checked, text, total, outside, worst, residual, evidence, {"not": count, "points": total})


def _rows_of_gradients(data: Data) -> list[Row]:
    inside = data["result"] == ProgramResult.optimal.value
    outside = int((data["result"] == ProgramResult.infeasible.value).sum())
    # A program that was neither solved nor proven to have no solution.
    undecided = int((~inside).sum()) - outside
    total = int(inside.sum()) + undecided
    excess, limit, push = data["excess"][inside], data["limit"][inside], data["push"][inside]
    far = float(np.abs(data["far_push"][inside]).min(initial=np.inf))
    kind = f"random W on data of Assumption B.2, n = T = d = {N}"
    return [
        _row(
            "Theorem 3",
            f"∇L(W) ≠ 0, by ⟨∇L(W), W^mm⟩ < 0; {kind}",
            push >= 0,
            float(push.max(initial=-1.0)),
            "cosine of ∇L and W^mm; below 0",
            outside=outside,
            undecided=undecided,
        ),
        # Saturated attention leaves less than rounding: equality to it is no contradiction.
        _row(
            "Lemma 2",
            f"L(W) > L_*; {kind}",
            excess < -ROUNDING,
            float(-excess.min(initial=np.inf)),
            "L_* − L(W)",
            outside=outside,
            undecided=undecided,
        ),
        _row(
            "Lemma 2",
            f"L(R W^mm) → L_*: the difference at R = {FAR:g}",
            limit > ROUNDING,
            float(limit.max(initial=0.0)),
            "|L(R W^mm) − L_*|",
            outside=outside,
            undecided=undecided,
        ),
        _row(
            "Lemma 9",
            f"⟨∇L(W), W^mm⟩ < 0; {kind}",
            push >= 0,
            float(push.max(initial=-1.0)),
            "cosine of ∇L and W^mm; below 0",
            outside=outside,
            undecided=undecided,
        ),
        Row(
            "Lemma 9",
            "one c > 0 with ⟨∇L(W), W^mm⟩ ≤ −c for all W",
            f"at W = {FAR:g} W^mm it is as small as {far:.0e}: no positive c is below all values, and none can be, "
            "since ∇L(R W^mm) → 0",
            total,
            outside,
            far,
            "least |⟨∇L, W^mm⟩|",
            # One c for all points: the smallest value refutes it, where the loss is at its infimum to rounding.
            Evidence(
                total,
                contradicted=int(np.sum(np.abs(data["far_push"][inside]) < ROUNDING)),
                undecided=undecided,
                checked_by="the loss itself, which is at its infimum there" if np.all(limit <= ROUNDING) else "",
            ),
            {"least": far},
        ),
    ]


def _row6(data: Data) -> Row:
    few, many = data["nonzero"] < 2, data["nonzero"] > data["tau"]
    return _row(
        "Lemma 6",
        "between 2 and τ entries of s* are nonzero for random scores and λ that satisfy (8), T = 10",
        few | many,
        float(np.abs(data["kkt"]).max()),
        "optimality of s*",
        text=f"; they are {int(data['nonzero'].min())} to {int(data['nonzero'].max())}",
    )


def _row7(data: Data) -> Row:
    over = data["lemma7"]
    return _row(
        "Lemma 7",
        "the difference is at most 2ΓA(1 − s₁)², random vectors",
        over > ROUNDING,
        float(over.max()),
        "left − right; at most 0",
    )


def _row10(data: Data) -> Row:
    ratios = ", ".join(f"{x:.4f}" for x in data["lemma10"])
    # The statement requires it to be below 1 + π for any π from some R on.
    broken = bool(data["lemma10"][-1] > 1.0 + 1e-3)
    return Row(
        "Lemma 10",
        "⟨∇L, W/‖W‖⟩ ≥ (1 + π)⟨∇L, W^mm/‖W^mm‖⟩ for ‖W‖ ≥ R_π, on Theorem 4's explicit case along W = ‖W‖ e₁e₁ᵀ",
        f"the ratio of the two products (at most 1 + π if it holds) is {ratios} at ‖W‖ = "
        f"{', '.join(f'{x:g}' for x in RADII)}: the proof finds one sequence with a margin below 1 and uses that of "
        "every sequence (with n = 1 it stands)",
        1,
        0,
        float(data["lemma10"][-1] - 1.0),
        "π that would be needed",
        Evidence(1, contradicted=int(broken), checked_by=_again(data["lemma10"])),
        {f"ratio_{radius:g}": float(x) for radius, x in zip(RADII, data["lemma10"], strict=True)},
    )
