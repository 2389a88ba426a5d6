"""Lemma 4: Lipschitz constants (3) of the gradients; Lemma 8: descent with steps up to 2/L_W."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxflow._core import linalg
from jaxflow.data import random_tokens
from jaxflow.models import CombinedAttention, FactoredAttention
from jaxflow.papers.experiment import Again, Draw, Statement, Table, keys_of, mapped, register, stacked, swept
from jaxflow.papers.independent import descent_direction, tokens_of
from jaxflow.papers.tarzanagh2023.verify import hypotheses
from jaxflow.papers.tarzanagh2023.verify.instances import smoothness
from jaxflow.risk import EmpiricalRisk

# Of those of Assumption A: with constants on the whole line.
LOSSES = {name: hypotheses.LOSSES[name] for name in ("logistic", "correlation")}
N, T, D = 3, 3, 3
# Data are scaled up, the curvature of a saturating softmax sits at weights that shrink with the scale.
SCALES = (0.3, 1.0, 3.0)
# Sizes ‖Q‖ at which L_K is tried.
SIZES = (1.0, 10.0, 100.0, 1000.0)
# Differences of losses carry 1e-16: a promised decrease above this is resolved to 1e-6.
MEASURABLE = 1e-10
RESOLVED = 1e-6
TRIALS = {"quick": 400, "paper": 20_000, "large": 200_000}


def _sizes(key: Array) -> tuple[Array, Array]:
    """Of the points, and of distances of pairs in units of it, from 1e-4 to 10."""
    _, key_scale, *_, key_near = jax.random.split(key, 6)
    spread = jnp.asarray(SCALES)[jax.random.randint(key_scale, (), 0, len(SCALES))]
    return spread, 10.0 ** jax.random.uniform(key_near, (), minval=-4.0, maxval=1.0)


def _factors(key: Array, size: Any) -> tuple[Array, Array, Array]:
    """The fixed factor, and the other one before and after a move."""
    spread, near = _sizes(key)
    one, two, step = jax.random.normal(jax.random.split(key, 6)[4], (3, D, D))
    # The product K Q^T keeps the size at which attention bends, whatever the size of the fixed factor.
    moving = spread * one / size
    return size * (two / linalg.singular_values(two)[0]), moving, moving + near * spread * step / size


@mapped(static=1)
def _pairs(name: str, key: Array) -> Table:
    """Of a random pair of weights, from far to infinitesimally near, and k sizes of the fixed factor.

    `W`: ‖∇L(W) − ∇L(V)‖ / ‖W − V‖ over L_W; `K`, `Q` `(k,)`: the same for one factor over the printed L_K, L_Q;
    `descent` `(2,)`: 1 + 2ΔL/(η‖∇L‖²) for η = 1/L_W and 2/L_W, NaN where rounding hides it.
    """
    loss, M0, M1 = LOSSES[name]
    key_data, _, key_point, key_other, *_ = jax.random.split(key, 6)
    data, head = random_tokens(key_data, N, T, D)
    risk = EmpiricalRisk(data, loss)
    constant = smoothness(data, head, M0, M1)
    spread, near = _sizes(key)

    def gradient(W: Array) -> Array:
        return jax.grad(lambda W: risk(CombinedAttention(W, head)))(W)

    W = spread * jax.random.normal(key_point, (D, D))
    V = W + near * spread * jax.random.normal(key_other, (D, D))
    first = gradient(W)
    ratio = jnp.linalg.norm(first - gradient(V)) / jnp.linalg.norm(W - V)

    def factors(K: Array, Q: Array) -> tuple[Array, Array]:
        return jax.grad(lambda K, Q: risk(FactoredAttention(K, Q, head)), argnums=(0, 1))(K, Q)

    def at(size: Array) -> Table:
        fixed, moving, moved = _factors(key, size)
        distance = jnp.linalg.norm(moving - moved)
        by_K = jnp.linalg.norm(factors(moving, fixed)[0] - factors(moved, fixed)[0]) / distance
        by_Q = jnp.linalg.norm(factors(fixed, moving)[1] - factors(fixed, moved)[1]) / distance
        return Table(K=by_K / (size * constant), Q=by_Q / (size * constant))

    def descended(share: int) -> Array:
        eta = share / constant
        change = risk(CombinedAttention(W - eta * first, head)) - risk(CombinedAttention(W, head))
        promised = 0.5 * eta * jnp.sum(first**2)
        return jnp.where(promised > MEASURABLE, 1.0 + change / promised, jnp.nan)

    # Lemma 8 allows η up to 2/L_W.
    descent = jnp.stack([descended(share) for share in (1, 2)])
    return Table(W=ratio / constant, descent=descent, **jax.vmap(at)(jnp.asarray(SIZES)).named)


# Both losses (l), at random data.
SMOOTHNESS = swept(
    "tarzanagh2023",
    "smoothness",
    pairs=lambda scale, key: stacked(
        _pairs(name, keys_of(key, number, TRIALS[scale])) for number, name in enumerate(LOSSES)
    ),
)


def lipschitz(part: str, says: str, corrected: bool = False) -> Statement[Table]:
    """Of the ratios `part`; corrected: over the constant with the square of the fixed factor's size."""

    def ratios(numbers: Table) -> np.ndarray:
        found = getattr(numbers.pairs, part)
        return found / np.asarray(SIZES) if corrected else found

    def again(numbers: Table, draw: Draw, at: tuple[int, ...]) -> float:
        loss, trial, size = at
        key = keys_of(draw.key("pairs"), loss, TRIALS[draw.scale])[trial]
        data, head = random_tokens(jax.random.split(key, 6)[0], N, T, D)
        given, name = tokens_of(data, head), list(LOSSES)[loss]
        fixed, *moves = (np.asarray(x) for x in _factors(key, SIZES[size]))
        # ∇_K L = ∇L(K Qᵀ) Q, ∇_Q L = ∇L(K Qᵀ)ᵀ K.
        if part == "K":
            pulls = [descent_direction(given, K @ fixed.T, name) @ fixed for K in moves]
        else:
            pulls = [descent_direction(given, fixed @ Q.T, name).T @ fixed for Q in moves]
        change = np.linalg.norm(pulls[1] - pulls[0]) / np.linalg.norm(moves[1] - moves[0])
        _, M0, M1 = list(LOSSES.values())[loss]
        v, sizes = np.linalg.norm(head), np.linalg.svd(given.tokens, compute_uv=False)[:, 0]
        L_W = np.mean(v * np.sum(given.queries**2, axis=1) * sizes**3 * (M0 * v * sizes + 3.0 * M1))
        return float(change / SIZES[size] / L_W)

    return Statement(
        source="Lemma 4",
        says=f"{says}; logistic and correlation loss",
        residual=ratios,
        bound=(1.0, "ratio; at most 1"),
        again=None if part == "W" or corrected else Again("a gradient in NumPy", again, RESOLVED),
    )


register(
    SMOOTHNESS,
    title="Lemmas 4 and 8",
    statements=[
        lipschitz("W", "L_W = (1/n) Σ a_i b_i of (3), for ∇L(W)"),
        lipschitz("K", "L_K = ‖Q‖ L_W as printed in (3), for ∇_K L(K, Q) at fixed Q"),
        lipschitz("K", "with L_K = ‖Q‖² L_W instead, ∇_K L(K, Q) at fixed Q", corrected=True),
        lipschitz("Q", "L_Q = ‖K‖ L_W as printed in (3), for ∇_Q L(K, Q) at fixed K"),
        lipschitz("Q", "with L_Q = ‖K‖² L_W instead, ∇_Q L(K, Q) at fixed K", corrected=True),
        Statement(
            source="Lemma 8",
            says="L(W − η∇L) − L(W) ≤ −(η/2)‖∇L‖² for η = 1/L_W and 2/L_W; logistic and correlation loss",
            # What is lost in rounding is undecided.
            residual=lambda n: n.pairs.descent.max(axis=-1),
            bound=(RESOLVED, "1 + 2ΔL/(η‖∇L‖²); at most 0"),
        ),
    ],
)
