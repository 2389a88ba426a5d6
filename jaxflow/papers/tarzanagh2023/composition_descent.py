"""Random instances with a nonlinear head, and the published descent on them (figures 8 and 11)."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from jaxflow._core import good
from jaxflow.data import TokenData
from jaxflow.gradient_descent import descend, published_protocol
from jaxflow.losses import Logistic
from jaxflow.models import CombinedAttention, MLPHead
from jaxflow.risk import EmpiricalRisk

# §6: tokens with softmax above the first are selected, below the second masked; "We also excluded instances with
# softmax outputs falling between".
SELECTED = 1e-3
MASKED = 1e-6

# Of the published descent.
LEARNING_RATE = 0.1


def draw(n: int, T: int, d: int, widest: int, key: Key[Array, ""]) -> tuple[Array, Array, Array, Array, Array]:
    r"""Tokens, queries, labels, V and W(0) of one instance, with zeros up to `widest`: one program serves all d.

    Tokens $x_{it}$ and queries $z_i$ are uniform on the unit sphere. The paper writes the head as
    $1^\top\mathrm{ReLU}(x)$ and v, which it does not use, as a point of the unit sphere; here V `(d, d)` is one,
    $\|V\|_F=1$ (d units), as in the published code. Labels are uniform on the $2^n-1$ sign patterns with a −1,
    which is the law of fair labels drawn again until one is −1. W(0) has entries $U(\pm1/\sqrt d)$.
    """
    key_tokens, key_queries, key_labels, key_head, key_start = jax.random.split(key, 5)
    tokens, queries = _sphere(key_tokens, n, T, d), _sphere(key_queries, n, d)
    # Bit i of the number is set where label i is +1; all bits set is left out.
    bits = (jax.random.randint(key_labels, (), 0, 2**n - 1) >> jnp.arange(n)) & 1
    labels = jnp.where(bits == 1, 1.0, -1.0)
    V = _sphere(key_head, d * d).reshape(d, d)
    W = CombinedAttention.init(key_start, TokenData(tokens, queries, labels), MLPHead(V)).W

    def pad(x: Array, axes: int) -> Array:
        return jnp.pad(x, [(0, 0)] * (x.ndim - axes) + [(0, widest - d)] * axes)

    return pad(tokens, 1), pad(queries, 1), labels, pad(V, 2), pad(W, 2)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def draws(n: int, T: int, d: int, widest: int, keys: Array) -> tuple[Array, ...]:
    return jax.vmap(partial(draw, n, T, d, widest))(keys)


def _sphere(key: Key[Array, ""], *shape: int) -> Array:
    x = jax.random.normal(key, shape)
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


@partial(jax.jit, static_argnums=(0, 1))
def descents(steps: int, every: int, *instances: Array) -> dict[str, Array]:
    return jax.vmap(partial(_descent, steps, every))(*instances)


def _descent(
    steps: int, every: int, tokens: Array, queries: Array, labels: Array, V: Array, W: Array
) -> dict[str, Array]:
    """The published protocol, and what its last attention selects and masks."""
    data = TokenData(tokens, queries, labels)
    risk, model = EmpiricalRisk(data, Logistic()), CombinedAttention(W, MLPHead(V))
    protocol = {**published_protocol(model), "learning_rate": LEARNING_RATE, "steps": steps}
    path = descend(risk, model, save_at=jnp.arange(0, steps + 1, every), throw=False, **protocol)
    log_s = jax.nn.log_softmax(path.final.model.logits(data), axis=-1)
    attention = jnp.exp(log_s)
    selected = attention > SELECTED
    weights = path.saved.model.W  # pyright: ignore[reportOptionalMemberAccess]
    # A descent that goes in a direction is as far from its middle as the steps in between are long.
    half = weights.shape[0] // 2
    length = LEARNING_RATE * every * (weights.shape[0] - 1 - half)
    units = jnp.einsum("rd,ntd,nt->nr", V, tokens, attention)
    rows = jnp.linalg.norm(V, axis=-1)
    kink = jnp.where(rows[None] > 0, jnp.abs(units) / jnp.where(rows > 0, rows, 1.0)[None], jnp.inf)
    return {
        "good": jnp.asarray(good(path.result)),
        "weights": weights,
        "attention": attention,
        "selected": selected,
        "top": jax.nn.one_hot(jnp.argmax(log_s, axis=-1), log_s.shape[-1], dtype=bool),
        "tokens_selected": jnp.sum(selected, axis=-1),
        "labels": labels,
        "sparse": jnp.any(~selected),
        "between": jnp.any((attention <= SELECTED) & (attention >= MASKED)),
        "log_masked": jnp.max(jnp.where(selected, -jnp.inf, log_s)) / jnp.log(10.0),
        "log_time": path.final.log_time,
        "at_rest": path.final.log_gradient_norm == -jnp.inf,
        "progress": jnp.linalg.norm(weights[-1] - weights[half]) / length,
        "units_off": jnp.all(units <= 0, axis=-1),
        "kink_distance": jnp.min(kink, axis=-1),
    }
