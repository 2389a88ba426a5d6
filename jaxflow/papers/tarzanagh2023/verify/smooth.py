"""Lemma 4: Lipschitz constants (3) of the gradients; Lemma 8: descent with steps up to 2/L_W."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import linalg
from jaxflow.data import random_tokens
from jaxflow.losses import Correlation, Logistic
from jaxflow.models import CombinedAttention, FactoredAttention
from jaxflow.papers.checks import AbstractCheck, Row, register_check
from jaxflow.papers.registry import Data
from jaxflow.papers.tarzanagh2023.verify.instances import smoothness
from jaxflow.report import bounded_evidence, count_evidence
from jaxflow.risk import EmpiricalRisk

# Loss, M0 and M1 of Assumption A.
LOSSES: dict[str, tuple[Any, float, float]] = {
    "logistic": (Logistic(), 0.25, 1.0),
    "correlation": (Correlation(), 0.0, 1.0),
}
N, T, D = 3, 3, 3
# Data are scaled up, the curvature of a saturating softmax sits at weights that shrink with the scale.
SCALES = (0.3, 1.0, 3.0)
# Sizes ‖Q‖ at which L_K is tried.
SIZES = (1.0, 10.0, 100.0, 1000.0)
# Differences of losses carry 1e-16: a promised decrease above this is resolved to 1e-6.
MEASURABLE = 1e-10
RESOLVED = 1e-6
# Step of central differences in units of the point: their error is its square, that of rounding 1e-16 over it.
DIFFERENCE = 1e-4
TRIALS = {"quick": 400, "paper": 20_000, "large": 200_000}


@register_check("tarzanagh2023", "smoothness", statements="Lemmas 4 and 8")
class Smoothness(AbstractCheck):
    """Ratios ‖∇L(W) − ∇L(V)‖ / ‖W − V‖ over the constants, for random pairs from far to infinitesimally near."""

    def compute(self, scale: str, key: Any, say: Callable[[str], None]) -> Data:
        say(f"Lemmas 4, 8: {TRIALS[scale]} pairs of weights for each loss and each ‖Q‖")
        found: Data = {"sizes": np.asarray(SIZES)}
        for number, name in enumerate(LOSSES):
            keys = jax.random.split(jax.random.fold_in(key, number), TRIALS[scale])
            for part, value in _pairs(name, keys).items():
                found[f"{name}_{part}"] = np.asarray(value)
        return found

    def rows(self, data: Data) -> list[Row]:
        rows = [_row(data, "W", "L_W = (1/n) Σ a_i b_i of (3), for ∇L(W)")]
        rows += [_row(data, "K_printed", "L_K = ‖Q‖ L_W as printed in (3), for ∇_K L(K, Q) at fixed Q")]
        rows += [_row(data, "K_corrected", "with L_K = ‖Q‖² L_W instead, ∇_K L(K, Q) at fixed Q")]
        rows += [_row(data, "Q_printed", "L_Q = ‖K‖ L_W as printed in (3), for ∇_Q L(K, Q) at fixed K")]
        rows += [_row(data, "Q_corrected", "with L_Q = ‖K‖² L_W instead, ∇_Q L(K, Q) at fixed K")]
        return [*rows, _descent_row(data)]


@partial(jax.jit, static_argnums=0)
def _pairs(name: str, keys: Array) -> dict[str, Array]:
    return jax.vmap(partial(_one, name))(keys)


def _one(name: str, key: Array) -> dict[str, Array]:
    loss, M0, M1 = LOSSES[name]
    key_data, key_scale, key_point, key_other, key_factors, key_near = jax.random.split(key, 6)
    data, head = random_tokens(key_data, N, T, D)
    risk = EmpiricalRisk(data, loss)
    constant = smoothness(data, head, M0, M1)
    spread = jnp.asarray(SCALES)[jax.random.randint(key_scale, (), 0, len(SCALES))]
    # Distances of pairs from 1e-4 to 10 of the points' own size.
    near = 10.0 ** jax.random.uniform(key_near, (), minval=-4.0, maxval=1.0)

    def gradient(W: Array) -> Array:
        return jax.grad(lambda W: risk(CombinedAttention(W, head)))(W)

    W = spread * jax.random.normal(key_point, (D, D))
    V = W + near * spread * jax.random.normal(key_other, (D, D))
    first = gradient(W)
    ratio = jnp.linalg.norm(first - gradient(V)) / jnp.linalg.norm(W - V)
    found = {"W": ratio / constant}

    def factors(K: Array, Q: Array) -> tuple[Array, Array]:
        return jax.grad(lambda K, Q: risk(FactoredAttention(K, Q, head)), argnums=(0, 1))(K, Q)

    def again(loss: Callable[[Array], Array], first: Array, second: Array) -> Array:
        """The change of the slope along that of the gradient, by central differences of the loss alone."""
        change = jax.grad(loss)(second) - jax.grad(loss)(first)
        unit = change / jnp.maximum(jnp.linalg.norm(change), jnp.finfo(change.dtype).tiny)
        h = DIFFERENCE * jnp.linalg.norm(first)
        slopes = [(loss(at + h * unit) - loss(at - h * unit)) / (2.0 * h) for at in (first, second)]
        return jnp.abs(slopes[1] - slopes[0])

    one, two, step = jax.random.normal(key_factors, (3, D, D))
    unit = two / linalg.singular_values(two)[0]

    def at(size: Array) -> dict[str, Array]:
        fixed = size * unit
        # The product K Q^T keeps the size at which attention bends, whatever the size of the fixed factor.
        moving = spread * one / size
        moved = moving + near * spread * step / size
        distance = jnp.linalg.norm(moving - moved)
        by_K = jnp.linalg.norm(factors(moving, fixed)[0] - factors(moved, fixed)[0]) / distance
        by_Q = jnp.linalg.norm(factors(fixed, moving)[1] - factors(fixed, moved)[1]) / distance
        K_again = again(lambda K: risk(FactoredAttention(K, fixed, head)), moving, moved) / distance
        Q_again = again(lambda Q: risk(FactoredAttention(fixed, Q, head)), moving, moved) / distance
        return {
            "K_printed_again": K_again / (size * constant),
            "Q_printed_again": Q_again / (size * constant),
            "K_printed": by_K / (size * constant),
            "K_corrected": by_K / (size**2 * constant),
            "Q_printed": by_Q / (size * constant),
            "Q_corrected": by_Q / (size**2 * constant),
        }

    found |= jax.vmap(at)(jnp.asarray(SIZES))
    # Lemma 8 allows η up to 2/L_W.
    for share in (1, 2):
        eta = share / constant
        moved = W - eta * first
        change = risk(CombinedAttention(moved, head)) - risk(CombinedAttention(W, head))
        square = jnp.sum(first**2)
        promised = 0.5 * eta * square
        found[f"descent{share}"] = jnp.where(promised > MEASURABLE, 1.0 + change / promised, jnp.nan)
    return found


def _row(data: Data, part: str, checked: str) -> Row:
    ratios = np.stack([data[f"{name}_{part}"] for name in LOSSES])
    above, total, largest = int((ratios > 1.0).sum()), ratios.size, float(ratios.max())
    text = f"{above} of {total} pairs change the gradient by more; largest ratio {largest:.3g} of the constant"
    if ratios.ndim == 3:
        by_size = ", ".join(f"{x:.2g}" for x in ratios.max(axis=(0, 1)))
        text += f" (at ‖·‖ = {', '.join(f'{x:g}' for x in data['sizes'])}: {by_size})"
    return Row(
        "Lemma 4",
        f"{checked}; logistic and correlation loss",
        text,
        total,
        0,
        largest,
        "ratio; at most 1",
        count_evidence(ratios <= 1.0, checked_by=_means(data, part, ratios)),
        {"above": above, "pairs": total, "largest": largest},
    )


def _means(data: Data, part: str, ratios: np.ndarray) -> str:
    """Whether differences of the loss, which do not use its gradient, exceed the constant too."""
    if not part.endswith("printed") or not np.any(ratios > 1.0):
        return ""
    again = np.stack([data[f"{name}_{part}_again"] for name in LOSSES])
    count = int(np.sum((ratios > 1.0) & (again > 1.0)))
    return (
        f"differences of the loss along the change of the gradient, which exceed it on {count} of them" if count else ""
    )


def _descent_row(data: Data) -> Row:
    once, twice = (np.stack([data[f"{name}_descent{share}"] for name in LOSSES]).ravel() for share in (1, 2))
    clear = np.isfinite(once) & np.isfinite(twice)
    once, twice = once[clear], twice[clear]
    broken = int((np.maximum(once, twice) > RESOLVED).sum())
    worst = [float(part.max(initial=-np.inf)) for part in (once, twice)]
    shortfall = np.where(
        clear, np.maximum(*(np.stack([data[f"{n}_descent{s}"] for n in LOSSES]).ravel() for s in (1, 2))), np.nan
    )
    return Row(
        "Lemma 8",
        "L(W − η∇L) − L(W) ≤ −(η/2)‖∇L‖² for η = 1/L_W and 2/L_W; logistic and correlation loss",
        f"{broken} of {len(once)} starts fall short; 1 + 2ΔL/(η‖∇L‖²) is at most {worst[0]:.2g} for η = 1/L_W and "
        f"{worst[1]:.2g} for 2/L_W; {int((~clear).sum())} decreases below {MEASURABLE:g} are lost in rounding",
        clear.size,
        0,
        max(worst),
        "1 + 2ΔL/(η‖∇L‖²); at most 0",
        # What is lost in rounding is undecided.
        bounded_evidence(shortfall, RESOLVED),
        {"broken": broken, "steps": len(once)},
    )
