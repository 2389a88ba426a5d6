r"""Pointwise losses, with derivatives that do not underflow.

A loss is a function of outputs $f$ and targets $y$. Margin losses depend on $q = yf$ alone, `CrossEntropy` on
$q_j=f_y-f_j$, and have infimum 0 at $q\to\infty$ (but for `Correlation`, which has none).
"""

import abc
import enum
import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxflow._core import exp_nonpositive, positive_or_one, require

Outputs = Float[Array, "..."]


class Tail(enum.IntEnum):
    r"""The behaviour of a loss of the margin for $q\to\infty$.

    - `exponential`: $\log|\ell'|$ falls like a multiple of q: margins diverge, at one rate.
    - `flat`: $\ell'=0$ from a finite margin on, as for hinge losses: the flow may end there.
    - `other`: a power of q, or no limit at all.
    """

    exponential = 1
    flat = 2
    other = 3


class AbstractLoss(eqx.Module):
    """A loss of outputs and targets of equal shape (`CrossEntropy`: outputs have one axis more than class numbers, that
    of the classes)."""

    margin: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        """ℓ at every output; may underflow to zero."""

    @abc.abstractmethod
    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        """log ℓ at every output, without underflow."""

    @abc.abstractmethod
    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        r"""$\partial\ell/\partial f = e^{c}w$ as `(c, w)` with one scale c and $\max|w| = 1$.

        The scale is constant under differentiation; the represented quantity is $e^c w$. Where every derivative is
        zero, so is w, and c is zero.
        """


def _from_logarithms(log_size: Outputs, sign: Outputs) -> tuple[Float[Array, ""], Outputs]:
    scale = lax.stop_gradient(jnp.max(log_size))
    # A loss that is flat has no slope anywhere once all data are fitted.
    scale = jnp.where(jnp.isneginf(scale), 0.0, scale)
    return scale, sign * exp_nonpositive(log_size - scale)


class Logistic(AbstractLoss):
    r"""$\ell = \log(1+e^{-yf})$."""

    margin: ClassVar[bool] = True

    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return jax.nn.softplus(-targets * outputs)

    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        q = targets * outputs
        # log log(1 + u) = log u - u/2 + O(u^2) with u = e^-q: exact to 1e-17 from q = 20 on.
        far = q > 20.0
        near = jnp.log(jax.nn.softplus(-jnp.where(far, 0.0, q)))
        return jnp.where(far, -q - 0.5 * jnp.exp(-jnp.where(far, q, 20.0)), near)

    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        return _from_logarithms(-jax.nn.softplus(targets * outputs), -targets)


class Exponential(AbstractLoss):
    r"""$\ell = e^{-yf}$."""

    margin: ClassVar[bool] = True

    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return jnp.exp(-targets * outputs)

    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return -targets * outputs

    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        return _from_logarithms(-targets * outputs, -targets)


class Correlation(AbstractLoss):
    r"""$\ell = -yf$ (Assumption A of Tarzanagh et al. 2023 allows it). It is negative: no logarithm."""

    margin: ClassVar[bool] = True

    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return -targets * outputs

    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return jnp.log(-targets * outputs)

    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        return _from_logarithms(jnp.zeros_like(outputs), -targets)


class CrossEntropy(AbstractLoss):
    r"""$\ell=\log\sum_je^{f_j}-f_y=\log\big(1+\sum_{j\ne y}e^{-(f_y-f_j)}\big)$ of one output for each class.

    Outputs $f$ are `(..., C)`, targets y `(...)` are class numbers from 0 to C−1. It is the logistic loss of
    $-\log\sum_{j\ne y}e^{-(f_y-f_j)}$: for two classes, that of the difference of their outputs. It is NaN for a target
    that is not a class. An output may be −∞: the datum does not have this class, and the margin over it is +∞.

    Targets `(..., C)` are frequencies of the classes, rows that sum to one (soft labels; of a language model: a context
    with several continuations). The loss is then $\sum_cy_c\ell(f,c)=-\sum_cy_c\log\mathrm{softmax}(f)_c$, and its
    infimum the entropy $-\sum_cy_c\log y_c$.
    """

    margin: ClassVar[bool] = True

    def value(self, outputs: Outputs, targets: Array) -> Outputs:
        if are_frequencies(outputs, targets):
            return jnp.sum(targets * self.value(outputs[..., None, :], _occurring(targets)), axis=-1)
        return Logistic().value(*self._logistic(outputs, targets))

    def log_value(self, outputs: Outputs, targets: Array) -> Outputs:
        if are_frequencies(outputs, targets):
            logs = self.log_value(outputs[..., None, :], _occurring(targets))
            return jax.nn.logsumexp(logs, axis=-1, b=targets)
        return Logistic().log_value(*self._logistic(outputs, targets))

    def scaled_derivative(self, outputs: Outputs, targets: Array) -> tuple[Float[Array, ""], Outputs]:
        r"""Let S be the classes that occur, $p^S$ softmax among them, and ε the sum of softmax p over the others. The
        derivative is $p_j$ outside of S, $(p^S_j-y_j)-p^S_j\varepsilon$ on S: $p_j-y_j$ has no digits where p is y."""
        soft = are_frequencies(outputs, targets)
        own, lead = _leads(outputs, jnp.argmax(targets, axis=-1) if soft else targets)
        occurs = targets > 0 if soft else own
        # logsumexp of no number has no derivative.
        some = ~jnp.all(occurs, axis=-1, keepdims=True)
        others = jax.nn.logsumexp(jnp.where(occurs & some, -jnp.inf, -lead), axis=-1, keepdims=True)
        within = jax.nn.logsumexp(jnp.where(occurs, -lead, -jnp.inf), axis=-1, keepdims=True)
        against = jnp.where(some, others - within, -jnp.inf)
        log_share = -lead - within
        push = jnp.where(occurs, log_share + against, log_share) - jax.nn.softplus(against)
        sign = jnp.where(occurs, -1.0, 1.0)
        if not soft:
            return _from_logarithms(push, sign)
        frequency = jnp.where(occurs, targets, 1.0)
        apart = jnp.where(occurs, frequency * jnp.expm1(jnp.where(occurs, log_share - jnp.log(frequency), 0.0)), 0.0)
        # Where p is y, or nearly, the value is zero and the derivative is not: no logarithm of it is taken. The inverse
        # of `tiny` is a number.
        tiny = 1e4 * float(jnp.finfo(apart.dtype).tiny)
        apart = apart - lax.stop_gradient(jnp.where(jnp.abs(apart) <= tiny, apart, 0.0))
        scale = lax.stop_gradient(jnp.maximum(jnp.max(push), jnp.log(jnp.max(jnp.abs(apart)))))
        scale = jnp.where(jnp.isneginf(scale), 0.0, scale)
        weights = apart * jnp.exp(-jnp.maximum(scale, math.log(tiny))) + sign * exp_nonpositive(push - scale)
        largest = positive_or_one(lax.stop_gradient(jnp.max(jnp.abs(weights))))
        return scale + jnp.log(largest), weights / largest

    def margins(self, outputs: Outputs, targets: Array) -> Float[Array, "... g"]:
        """$f_y-f_j$ for the classes j ≠ y in their order. For frequencies `(..., C, C-1)`, those of every class y; a
        class that does not occur has those of the most frequent one."""
        if are_frequencies(outputs, targets):
            return self.margins(outputs[..., None, :], _occurring(targets))
        lead = _leads(outputs, targets)[1]
        before = _classes(lead[..., 1:]) < targets[..., None]
        return jnp.where(before, lead[..., :-1], lead[..., 1:])

    def _logistic(self, outputs: Outputs, targets: Array) -> tuple[Outputs, Outputs]:
        """The output of the logistic loss that has this value, and its label."""
        own, lead = _leads(outputs, targets)
        margin = -jax.nn.logsumexp(jnp.where(own, -jnp.inf, -lead), axis=-1)
        return margin, jnp.ones_like(margin)


def are_frequencies(outputs: Outputs, targets: Array) -> bool:
    """Whether targets of `CrossEntropy` are frequencies of the classes: they have all axes of the outputs."""
    return jnp.ndim(targets) == jnp.ndim(outputs)


def _classes(outputs: Outputs) -> Int[Array, "... C"]:
    return lax.broadcasted_iota(int, outputs.shape, outputs.ndim - 1)


def _occurring(targets: Float[Array, "... C"]) -> Int[Array, "... C"]:
    """The classes; the most frequent one in place of those that do not occur."""
    return jnp.where(targets > 0, _classes(targets), jnp.argmax(targets, axis=-1, keepdims=True))


def _leads(outputs: Outputs, targets: Array) -> tuple[Bool[Array, "... C"], Outputs]:
    """Where each target's own output is, and by how much it leads every other; NaN for a target that is no class."""
    own = _classes(outputs) == targets[..., None]
    there = jnp.sum(jnp.where(own, outputs, 0.0), axis=-1, keepdims=True)
    return own, jnp.where(jnp.any(own, axis=-1, keepdims=True), there, jnp.nan) - outputs


class Squared(AbstractLoss):
    r"""$\ell = \tfrac12(f-y)^2$."""

    margin: ClassVar[bool] = False

    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return 0.5 * (outputs - targets) ** 2

    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return 2.0 * jnp.log(jnp.abs(outputs - targets)) - jnp.log(2.0)

    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        residual = outputs - targets
        size = lax.stop_gradient(jnp.max(jnp.abs(residual)))
        # Of no residual the scale is one, as in `_from_logarithms`.
        size = positive_or_one(size)
        return jnp.log(size), residual / size


# Margins at which the tail of a loss is looked for, up to where exp(-q) underflows.
_PROBES = [2.0**k for k in range(1, 11)]


class MarginLoss(AbstractLoss):
    r"""A loss of your own, $\ell(q)$ with $q=yf$: any function of a number that JAX differentiates.

    The derivative is taken automatically. Where it underflows, a tail that was found to be exponential is continued by
    its slope, $\log|\ell'(q)|=\log|\ell'(q_0)|-\kappa(q-q_0)$, with $q_0$ the last of 2, 4, 8, ... where
    $|\ell'|>10^{-100}$; so `lambda q: jnp.log1p(jnp.exp(-q))` can be followed as long as `Logistic`.

    **Arguments:** `function`. **Raises:** `ValueError` naming `loss` unless it maps a number to a number and decreases
    somewhere.

    **Example:**

    ```python
    squared_hinge = jf.losses.MarginLoss(lambda q: jnp.maximum(1.0 - q, 0.0) ** 2)
    assert squared_hinge.tail == jf.losses.Tail.flat
    ```
    """

    function: Callable[[Float[Array, ""]], Float[Array, ""]] = eqx.field(static=True)
    tail: Tail = eqx.field(static=True)
    last: float = eqx.field(static=True)
    decay: float = eqx.field(static=True)
    margin: ClassVar[bool] = True

    def __init__(self, function: Any):
        require(callable(function), "loss", f"expected a function of the margin, got {function!r}")
        try:
            shape = jax.eval_shape(function, jnp.zeros(())).shape
        except (TypeError, AttributeError) as error:
            raise ValueError(f"loss: does not map a margin to a number ({error})") from error
        require(shape == (), "loss", f"expected a number for a margin, got shape {shape}")
        self.function = function
        with jax.ensure_compile_time_eval():
            slopes = [float(jax.grad(function)(jnp.asarray(q))) for q in _PROBES]
            begun = [float(jax.grad(function)(jnp.asarray(-q))) for q in _PROBES]
        require(min(begun + slopes) < 0, "loss", "expected a function of the margin q = y f that falls as q grows")
        self.tail, self.last, self.decay = _tail(slopes)

    def value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        return _each(self.function, targets * outputs)

    def log_value(self, outputs: Outputs, targets: Outputs) -> Outputs:
        q = targets * outputs
        value = _each(self.function, jnp.minimum(q, self.last))
        # An exponential is its own derivative.
        return jnp.where(value > 0, jnp.log(positive_or_one(value)), -jnp.inf) - self.decay * jnp.maximum(
            q - self.last, 0.0
        )

    def scaled_derivative(self, outputs: Outputs, targets: Outputs) -> tuple[Float[Array, ""], Outputs]:
        q = targets * outputs
        slope = _each(jax.grad(self.function), jnp.minimum(q, self.last))
        there = slope != 0
        log_size = jnp.where(there, jnp.log(jnp.abs(jnp.where(there, slope, 1.0))), -jnp.inf)
        return _from_logarithms(log_size - self.decay * jnp.maximum(q - self.last, 0.0), jnp.sign(slope) * targets)


def _each(function: Callable[[Any], Any], q: Outputs) -> Outputs:
    return jax.vmap(function)(q.reshape(-1)).reshape(q.shape)


def _tail(slopes: list[float]) -> tuple[Tail, float, float]:
    """The tail of a loss from its slopes at the probes: kind, last usable margin, rate."""
    known = [(q, math.log(-slope)) for q, slope in zip(_PROBES, slopes, strict=True) if slope < -1e-100]
    if slopes[-1] == 0.0 and len(known) >= 3:
        (q0, a), (q1, b), (q2, c) = known[-3:]
        rates = (a - b) / (q1 - q0), (b - c) / (q2 - q1)
        # Those of the logistic loss agree to 1e-6 from q = 16 on.
        if abs(rates[0] - rates[1]) <= 1e-6 * rates[1]:
            return Tail.exponential, q2, rates[1]
    # A slope that falls that far and does not vanish is steeper than an exponential, and no hinge.
    flat = slopes[-1] == 0.0 and slopes[-2] == 0.0 and all(log > -20.0 for _, log in known)
    return (Tail.flat if flat else Tail.other), math.inf, 0.0


def slope_jumps(loss: AbstractLoss) -> bool:
    """Whether the slope of a `MarginLoss` jumps somewhere, as that of a hinge, and does not only bend.

    Of each interval between probes the half over which the slope changes more is taken, down to roundings.
    """
    if not isinstance(loss, MarginLoss):
        return False
    slope = jax.vmap(jax.grad(loss.function))

    def halved(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        a, b, c = map(slope, (low, middle, high))
        first = jnp.abs(b - a) > jnp.abs(c - b)
        return jnp.where(first, low, middle), jnp.where(first, middle, high)

    @jax.jit
    def jumps(ends: Array) -> Array:
        digits = jnp.finfo(ends.dtype)
        low, high = lax.fori_loop(0, digits.nmant, halved, (ends[:-1], ends[1:]))
        change, size = jnp.abs(slope(high) - slope(low)), jnp.max(jnp.abs(slope(ends)))
        return jnp.any(change > jnp.sqrt(digits.eps) * size)

    with jax.ensure_compile_time_eval():
        return bool(jumps(jnp.asarray([-q for q in reversed(_PROBES)] + _PROBES)))
