r"""Losses as functions of the margins of one datum: names, margins, tails, self-concordance.

A datum has one margin, $q=yf$, or under `CrossEntropy` one for every other class, $q_j=f_y-f_j$. A row of frequencies
is C data, one for each class, whose weights are the frequencies (`weights_of`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxflow._core import positive_or_one, require, unknown_name
from jaxflow.losses.pointwise import (
    AbstractLoss,
    Correlation,
    CrossEntropy,
    Exponential,
    Logistic,
    MarginLoss,
    Outputs,
    Squared,
    Tail,
    are_frequencies,
)

LOSSES: dict[str, AbstractLoss] = {
    "logistic": Logistic(),
    "exponential": Exponential(),
    "correlation": Correlation(),
    "cross_entropy": CrossEntropy(),
    "squared": Squared(),
}


def as_loss(loss: Any) -> AbstractLoss:
    """A loss from a loss, its name, or a function of the margin $q=yf$. **Raises:** `ValueError` naming `loss`."""
    if isinstance(loss, AbstractLoss):
        return loss
    if isinstance(loss, str):
        if loss.lower() not in LOSSES:
            raise unknown_name("loss", loss, LOSSES)
        return LOSSES[loss.lower()]
    require(
        callable(loss) and not isinstance(loss, type),
        "loss",
        f"expected a jaxflow loss, the name of one ({', '.join(LOSSES)}) or a function",
        got=loss,
    )
    return MarginLoss(loss)


def tail_of(loss: AbstractLoss) -> Tail:
    """The behaviour of the loss as margins grow; `other` for a loss that is not a function of the margin."""
    require(isinstance(loss, AbstractLoss), "loss", "expected a jaxflow loss", got=loss)
    if isinstance(loss, MarginLoss):
        return loss.tail
    return Tail.exponential if isinstance(loss, Logistic | Exponential | CrossEntropy) else Tail.other


def margins_of(loss: AbstractLoss, outputs: Outputs, targets: Array) -> Float[Array, "... g"]:
    r"""The margins of every datum on a last axis: $yf$, or under `CrossEntropy` $f_y-f_j$ for the classes $j\ne y$ in
    their order, C−1 of them. Every loss of the margin decreases in each of them.

    Frequencies of classes are weighted data of one class each (`weights_of`), with margins `(..., C, C-1)`: a class
    that does not occur has weight zero, and repeats the margins of the most frequent one.

    **Raises:** `ValueError` naming `loss` for a loss that is not a function of margins.

    **Example:**

    ```python
    many, labels = jnp.array([[0.0, 2.0, 5.0]]), jnp.array([1])
    assert jf.losses.margins_of(jf.losses.CrossEntropy(), many, labels).tolist() == [[2.0, -3.0]]
    assert jf.losses.margins_of(jf.losses.Logistic(), jnp.array([2.0]), jnp.array([-1.0])).tolist() == [[-2.0]]
    ```
    """
    require(isinstance(loss, AbstractLoss), "loss", "expected a jaxflow loss", got=loss)
    require(loss.margin, "loss", f"{type(loss).__name__} is not a margin loss")
    if not isinstance(loss, CrossEntropy):
        return (targets * outputs)[..., None]
    return loss.margins(outputs, targets)


def weights_of(loss: AbstractLoss, outputs: Outputs, targets: Array) -> Float[Array, "..."]:
    r"""The weights in $\sum_iw_i\ell(q_i)$, one for each row of `margins_of`: frequencies of classes, or ones.

    **Example:**

    ```python
    outputs, often = jnp.zeros((1, 3)), jnp.array([[0.25, 0.75, 0.0]])
    assert jf.losses.weights_of(jf.losses.CrossEntropy(), outputs, often).tolist() == [[0.25, 0.75, 0.0]]
    ```
    """
    require(isinstance(loss, AbstractLoss), "loss", "expected a jaxflow loss", got=loss)
    soft = isinstance(loss, CrossEntropy) and are_frequencies(outputs, targets)
    return targets if soft else jnp.ones(targets.shape, outputs.dtype)


def scaled_by_output(loss: AbstractLoss, outputs: Outputs, targets: Array) -> tuple[Outputs, Outputs]:
    r"""$\partial\ell/\partial f_i=e^{c_i}w_i$ as `(c, w)`, one scale for each output.

    Slopes of losses with an exponential tail may differ by more than the range of floating point, and the smaller slope
    may be multiplied by the larger number later. Slopes of other losses share the scale of `scaled_derivative`.

    **Example:**

    ```python
    far = jnp.array([0.0, 2000.0])
    scale, weights = jf.losses.scaled_by_output(jf.losses.Exponential(), far, jnp.ones(2))
    assert scale.tolist() == [0.0, -2000.0] and weights.tolist() == [-1.0, -1.0]
    ```
    """
    if tail_of(loss) is not Tail.exponential or isinstance(loss, CrossEntropy):
        scale, weights = loss.scaled_derivative(outputs, targets)
        return jnp.broadcast_to(scale, weights.shape), weights
    scale, weights = jax.vmap(lambda f, y: loss.scaled_derivative(f[None], y[None]))(
        outputs.reshape(-1), targets.reshape(-1)
    )
    return scale.reshape(outputs.shape), weights.reshape(outputs.shape)


def value_of_margins(loss: AbstractLoss, q: Float[Array, "... g"]) -> Float[Array, "..."]:
    r"""ℓ from the margins of every datum: $\ell(q)$ for one margin, $\log(1+\sum_je^{-q_j})$ for those of
    `CrossEntropy`."""
    require(isinstance(loss, AbstractLoss), "loss", "expected a jaxflow loss", got=loss)
    if isinstance(loss, CrossEntropy):
        return jax.nn.softplus(jax.nn.logsumexp(-q, axis=-1))
    return jnp.sum(loss.value(q, jnp.ones_like(q)), axis=-1)


def log_slope_excess(loss: AbstractLoss, q: Float[Array, "... g"]) -> Float[Array, "... g"]:
    r"""$\log|\partial\ell/\partial q_j|+\kappa q_j$ of a loss with an exponential tail of rate κ (`tail_rate`), by the
    margins of a datum on the last axis: it tends to a constant. For `CrossEntropy` it is $-\log(1+\sum_le^{-q_l})$.
    """
    require(isinstance(loss, AbstractLoss), "loss", "expected a jaxflow loss", got=loss)
    if isinstance(loss, Logistic):
        return -jax.nn.softplus(-q)
    if isinstance(loss, CrossEntropy):
        return jnp.broadcast_to(-jax.nn.softplus(jax.nn.logsumexp(-q, axis=-1, keepdims=True)), q.shape)
    if isinstance(loss, MarginLoss):
        near = jnp.minimum(q, loss.last)
        slope = jnp.abs(jnp.vectorize(jax.grad(loss.function))(near))
        return jnp.log(positive_or_one(slope)) + loss.decay * near
    return jnp.zeros_like(q)


def tail_rate(loss: AbstractLoss) -> float:
    r"""κ of an exponential tail, $\ell'(q)\sim-ce^{-\kappa q}$."""
    require(isinstance(loss, AbstractLoss), "loss", "expected a jaxflow loss", got=loss)
    return loss.decay if isinstance(loss, MarginLoss) else 1.0


# Margins at which a loss of one's own is looked at: both sides of zero, closely where losses bend.
_GRID = [sign * 0.25 * k for k in range(1, 41) for sign in (-1.0, 1.0)] + [0.0, -20.0, 20.0, -50.0, 50.0]


def self_concordance(loss: AbstractLoss) -> float | None:
    r"""M with $|D^3\ell[v,v,u]|\le M\|u\|_\infty D^2\ell[v,v]$ for changes u and v of the margins of one datum.

    For a convex, decreasing loss with an exponential tail (Bach 2010; Sun and Tran-Dinh 2019); None for others. For one
    margin this is $|\ell'''|\le M\ell''$.

    M is one for the logistic and the exponential loss. For a loss of your own M is twice the largest ratio at 85
    margins; None if the loss increases or is concave at one of them.

    Two for `CrossEntropy`: with V and U the entries of (0, v) and (0, u) at a class drawn from softmax,
    $D^2\ell[v,v]=\mathrm{Var}\,V$ and

    $$|D^3\ell[v,v,u]|=|E(V-EV)^2(U-EU)|\le\max|U-EU|\,\mathrm{Var}\,V.$$

    Values within $\pm\|u\|_\infty$ are at most $2\|u\|_\infty$ from their mean.

    **Example:**

    ```python
    assert jf.losses.self_concordance(jf.losses.Logistic()) == 1.0
    assert jf.losses.self_concordance(jf.losses.MarginLoss(lambda q: 1.0 / (1.0 + jnp.exp(q)))) is None
    ```
    """
    if tail_of(loss) is not Tail.exponential:
        return None
    if not isinstance(loss, MarginLoss):
        return 2.0 if isinstance(loss, CrossEntropy) else 1.0
    slope = jax.grad(loss.function)
    bend = jax.grad(slope)
    with jax.ensure_compile_time_eval():
        q = jnp.asarray(_GRID)
        first, second, third = (jax.vmap(f)(q) for f in (slope, bend, jax.grad(bend)))
        # A second derivative that has underflown says nothing.
        ratio = jnp.where(second > 0, jnp.abs(third) / positive_or_one(second), 0.0)
        usable = bool(jnp.all((first < 0) & (second >= 0)) & jnp.any(second > 0))
        return 2.0 * float(jnp.max(ratio)) if usable else None
