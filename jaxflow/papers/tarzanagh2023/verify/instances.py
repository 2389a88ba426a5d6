"""Instances that satisfy an assumption by construction, a common shape for all of them, and choices of their tokens."""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from jaxflow._core import linalg
from jaxflow.data import TokenData, optimal_tokens, random_tokens
from jaxflow.gradient_descent import descend
from jaxflow.losses import Logistic
from jaxflow.margin import attention_svm, is_locally_optimal, solve
from jaxflow.models import CombinedAttention, token_scores
from jaxflow.papers.table import Table
from jaxflow.risk import EmpiricalRisk

# (n, T, d) of all that is followed by one compiled program.
SHAPE = (5, 5, 6)


def instance(data: TokenData, head: Float[Array, " d"], start: Any = None, target: Any = None) -> Table:
    """`data`, linear `head`, a `start` W(0) `(d, d)`, and the `target` tokens `(n, T)` that a statement says are
    selected. By default the start is zero and the target the optimal tokens."""
    d = data.tokens.shape[-1]
    start = jnp.zeros((d, d)) if start is None else start
    target = optimal_tokens(token_scores(data, head), data.visible) if target is None else target
    return Table(data=data, head=head, start=start, target=target)


def padded(given: Table, shape: tuple[int, int, int] = SHAPE) -> Table:
    """The same problem in a larger shape `(n, T, d)`, so that one compiled flow serves all sizes.

    Added coordinates are zero and added tokens hidden. Added sequences see one token only: they neither
    contribute a gradient nor a constraint.
    """
    n, T, d = given.data.tokens.shape
    more_n, more_T, more_d = (wide - narrow for wide, narrow in zip(shape, (n, T, d), strict=True))
    rows, columns = (0, more_n), (0, more_T)
    visible = jnp.pad(given.data.visible, (rows, columns))
    first = jnp.broadcast_to(jnp.arange(T + more_T)[None, :] == 0, visible.shape)
    added = jnp.broadcast_to((jnp.arange(n + more_n) >= n)[:, None], visible.shape)
    data = TokenData(
        jnp.pad(given.data.tokens, (rows, columns, (0, more_d))),
        jnp.pad(given.data.queries, (rows, (0, more_d))),
        jnp.pad(given.data.labels, rows, constant_values=1.0),
        visible | (added & first),
    )
    return instance(
        data,
        jnp.pad(given.head, (0, more_d)),
        jnp.pad(given.start, ((0, more_d), (0, more_d))),
        jnp.pad(given.target, (rows, columns)) | (added & first),
    )


def unit_tokens(wide: int, d: Any, key: Array, *shape: int) -> Array:
    """Uniform on the unit sphere of the first d of `wide` coordinates, `(*shape, wide)`; d may be traced."""
    x = jax.random.normal(key, (*shape, wide)) * (jnp.arange(wide) < d).reshape((1,) * len(shape) + (wide,))
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def unit_data(wide: int, d: Any, keys: Any, labels: Array, T: int) -> tuple[TokenData, Array]:
    """Such tokens, queries and head, drawn from three keys: one program serves every d."""
    unit, n = partial(unit_tokens, wide, d), labels.size
    return TokenData(unit(keys[0], n, T), unit(keys[1], n), labels), unit(keys[2])


def spread_and_gap(data: TokenData, head: Array) -> tuple[Array, Array]:
    """How far scores other than the optimal one lie apart within a sequence, at most; and from the optimal one, at
    least."""
    scores = token_scores(data, head)
    others = jnp.where(optimal_tokens(scores, data.visible), jnp.nan, scores)
    second = jnp.nanmax(others, axis=1)
    return jnp.max(second - jnp.nanmin(others, axis=1)), jnp.min(jnp.max(scores, axis=1) - second)


def equal_scores(key: Key[Array, ""], n: int, T: int, d: int) -> tuple[TokenData, Float[Array, " d"]]:
    r"""Random data that satisfy Assumption B.2: $\gamma_{it}=\gamma_{i\tau}<\gamma_{i\,\mathrm{opt}_i}$.

    From unit-sphere tokens, every non-optimal one is moved along v to the second-best score of its sequence
    (the construction of the proof of Theorem 5). For T = 2 nothing moves: the assumption is empty.

    The head is the first coordinate vector, which by rotation changes no law, and makes scores equal to the
    last bit: rounding would decide between tokens that are told apart by nothing else.
    """
    data, _ = random_tokens(key, n, T, d)
    head = jnp.zeros(d).at[0].set(1.0)
    scores = token_scores(data, head)
    best = optimal_tokens(scores, data.visible)
    second = jnp.max(jnp.where(best, -jnp.inf, scores), axis=-1, keepdims=True)
    first = jnp.where(best, scores, second) * data.labels[:, None]
    return TokenData(data.tokens.at[:, :, 0].set(first), data.queries, data.labels), head


def explicit_case() -> tuple[TokenData, Float[Array, " d"]]:
    """n = T = d = 2 with equal queries: Assumption B.2 holds, and descent from zero selects a wrong token."""
    tokens = jnp.array([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [-1.5, 1.3]]])
    queries = jnp.array([[1.0, 0.0], [1.0, 0.0]])
    return TokenData(tokens, queries, jnp.ones(2)), jnp.array([1.0, 1.162])


def smoothness(data: TokenData, head: Float[Array, " d"], M0: float = 0.25, M1: float = 1.0) -> Float[Array, ""]:
    r"""$L_W=\frac1n\sum_ia_ib_i$ of (3): $a_i=\|v\|\|z_i\|^2\|X_i\|^3$, $b_i=M_0\|v\|\|X_i\|+3M_1$.

    By default $|\ell''|\le1/4$ and $|\ell'|\le1$ (Assumption A): the logistic loss.
    """
    sizes = linalg.singular_values(data.tokens)[..., 0]
    v = jnp.linalg.norm(head)
    a = v * jnp.sum(data.queries**2, axis=-1) * sizes**3
    return jnp.mean(a * (M0 * v * sizes + 3.0 * M1))


def scaled_gradient_of(data: TokenData, head: Any, W: Array) -> Any:
    """Of the logistic risk, at W."""
    return EmpiricalRisk(data, Logistic()).scaled_gradient(CombinedAttention(W, head))


def gradient_of(data: TokenData, head: Any, W: Array) -> Array:
    """∇L(W) up to a positive factor, that of its log scale; exactly ∇L at a scale of zero."""
    scaled = scaled_gradient_of(data, head, W)
    return scaled.gradient.W * jnp.where(scaled.log_scale > -100.0, jnp.exp(scaled.log_scale), 1.0)


def plain_descent(data: TokenData, head: Any, W: Array, steps: int, save_at: Any = None) -> Any:
    """On the logistic loss from W, with η = 1/L_W."""
    return descend(
        EmpiricalRisk(data, Logistic()),
        CombinedAttention(W, head),
        steps=steps,
        learning_rate=1.0 / smoothness(data, head),
        normalised=False,
        save_at=save_at,
        throw=False,
    )


def margins_of(data: TokenData, selection: Array, W: Array) -> Array:
    """Of the selected tokens over the others, `(n, T)`; +inf at the selected ones."""
    logits = jnp.einsum("ntd,de,ne->nt", data.tokens, W, data.queries)
    own = jnp.sum(jnp.where(selection, logits, 0.0), axis=-1, keepdims=True)
    return jnp.where(selection, jnp.inf, own - logits)


def radius(gaps: Table, mu: Array, theta: Array, T: int) -> Array:
    """R_μ of (59), Θ = 1/‖W^mm‖. Its γ_min is meant as the least gap, the supremum in the text says the largest."""
    return jnp.log(4.0 * T * jnp.max(gaps.most) * gaps.A / (mu * jnp.min(gaps.least))) / (mu * theta)


def gaps_of(data: TokenData, head: Any, best: Array, theta: Array) -> Table:
    """What (59) is made of: how far the optimal tokens score above the second-best, `least`, and above the worst ones
    of their sequences, `most`, `(n,)` each; and `A`, the largest ‖x_it − x_iτ‖‖z_i‖ or ‖z_i‖ times ‖W^mm‖."""
    scores = token_scores(data, head)
    top = jnp.max(scores, axis=1)
    pairs = jnp.linalg.norm(data.tokens[:, :, None] - data.tokens[:, None], axis=-1)
    A = jnp.max(jnp.maximum(pairs, 1.0) * jnp.linalg.norm(data.queries, axis=-1)[:, None, None]) / theta
    second = jnp.max(jnp.where(best, -jnp.inf, scores), axis=1)
    return Table(least=top - second, most=top - jnp.min(scores, axis=1), A=A)


def way_out(data: TokenData, best: Array, aim: Array, noise: Array, steps: int) -> tuple[Array, Array, Array]:
    """Unit matrices from the direction `aim` towards the noise, `(1 + steps, d, d)`, their least margins, and the place
    of the first one that does not separate the optimal tokens; the last one where all do."""
    shares = jnp.linspace(0.0, 1.0, 1 + steps)[:, None, None]
    line = (1.0 - shares) * aim + shares * noise / jnp.linalg.norm(noise)
    line = line / jnp.sqrt(jnp.sum(line**2, axis=(1, 2), keepdims=True))
    least = jax.vmap(lambda U: jnp.min(margins_of(data, best, U)))(line)
    return line, least, jnp.where(jnp.all(least > 0), steps, jnp.argmin(least > 0))


def choices_of_tokens(outputs: int, T: int) -> np.ndarray:
    """All $T^q$ choices of one of T tokens for each of q outputs, `(N, q)`."""
    return np.asarray(list(itertools.product(range(T), repeat=outputs)), dtype=np.int32)


def masks(choices: Int[Array, "N q"], data: TokenData) -> Array:
    """Choices as Booleans `(N, *visible.shape)`."""
    shape = data.visible.shape
    return jax.nn.one_hot(choices, shape[-1], dtype=bool).reshape(choices.shape[0], *shape)


def programs_of(data: TokenData, head: Any, choices: Int[Array, "N q"], norm: str = "frobenius") -> Table:
    r"""Of one instance, for each choice: `result`, `status` (Definition 2), `support`, `excess` of margins over one,
    `weights` $W^{mm}_\alpha$ and `push` $\sum_{i,t}(x_{i\alpha_i}-x_{it})z_i^\top$, a direction towards the choice that
    always exists.
    """

    def one(selection: Array) -> Table:
        program = attention_svm(data, selection, norm)
        solution = solve(program)
        local = is_locally_optimal(data, head, selection, solution)
        return Table(
            result=solution.result.value,
            status=local.status.value,
            support=local.support,
            excess=local.excess,
            weights=solution.primal,
            push=program.adjoint(program.active.astype(float)),
        )

    return jax.vmap(one)(masks(choices, data))


def factors(W: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    r"""$K=U\sqrt\Sigma$, $Q=V\sqrt\Sigma$ of the m largest singular values, for a batch of matrices `(..., d, d)`."""
    U, sizes, Vt = np.linalg.svd(W)
    root = np.sqrt(sizes[..., None, :m])
    return U[..., :m] * root, np.swapaxes(Vt, -1, -2)[..., :m] * root


def unit(W: np.ndarray) -> np.ndarray:
    """Matrices `(..., d, d)` over their Frobenius norms, zero for zero."""
    size = np.linalg.norm(W, axis=(-2, -1), keepdims=True)
    return W / np.where(size > 0, size, 1.0)


def apart(W: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Distance of two unit matrices, over a batch."""
    return np.linalg.norm(unit(W) - unit(V), axis=(-2, -1))


N, T = 5, 5
CHOICES = choices_of_tokens(N, T)


@partial(jax.jit, static_argnums=1)
def random_instance(key: Any, d: int) -> Table:
    """Unit-sphere data with n = T = 5 in the common shape, from a zero start."""
    return padded(instance(*random_tokens(key, N, T, d)))
